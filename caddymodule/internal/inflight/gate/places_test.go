package gate

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/inflight/fairqueue"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// hold takes the slot of a key until the end of the test.
func hold(g *Gate, l Limits, key string) {
	s := turn(1<<20, fairqueue.First, "holder")
	s.Key = key
	come(g, l, 2*time.Hour, s)
}

// Many providers give each customer 256 networks of IPv6, each of which is a client.
func TestTheClientsOfOneNetworkKeepNobodyOut(t *testing.T) {
	for _, share := range []bool{false, true} {
		inBubble(t, func(t *testing.T, g *Gate) {
			l := Limits{Slots: 1, Wait: time.Hour, Queue: 200, Share: share}
			hold(g, l, "")
			for i := range 256 {
				client := sender(netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0x20, 7: byte(i)}), 64))
				s := turn(i, fairqueue.First, fmt.Sprint(i))
				s.From = client
				come(g, l, 0, s)
			}
			office := several(10, g, l, 0, turn(1, fairqueue.First, "office"))
			check.Equal(t, places(office), 10, "share %v: places of an office beside 256 clients", share)
		})
	}
}

// Ten clients take all that they can get, one after the other, and again and again.
func TestTenClientsKeepNobodyOut(t *testing.T) {
	for _, share := range []bool{false, true} {
		inBubble(t, func(t *testing.T, g *Gate) {
			l := Limits{Slots: 1, Wait: time.Hour, Queue: 200, Share: share}
			hold(g, l, "")
			attack := func() (all []*visit) {
				for n := range 10 {
					all = append(all, several(250, g, l, 0, turn(n, fairqueue.First, fmt.Sprint(n)))...)
				}
				return all
			}
			first := attack()
			visitor := come(g, l, 0, turn(20, fairqueue.First, "visitor"))
			office := several(10, g, l, 0, turn(21, fairqueue.First, "office"))
			attack()
			check.Equal(t, places([]*visit{visitor}), 1, "share %v: places of the visitor beside ten clients", share)
			check.Equal(t, places(office), 10, "share %v: places of the office", share)
			check.Equal(t, g.Load().Queued, 200, "share %v: places held", share)
			refused := 0
			for _, v := range first {
				if v.over.Load() && v.result.Why == QueueFull {
					refused++
				}
			}
			check.That(t, refused+places(first) == len(first) && places(first) >= 150, "share %v: got %d refused and %d waiting of %d", share, refused, places(first), len(first))
		})
	}
}

// Of clients with equally many places, the one whose last request came latest gives that up.
func TestTheLatestOfTheHeaviestGivesWay(t *testing.T) {
	for range 20 { // in any order of a map
		inBubble(t, func(t *testing.T, g *Gate) {
			l := Limits{Slots: 1, Wait: time.Hour, Queue: 8}
			hold(g, l, "")
			var all []*visit
			for _, client := range []int{1, 2, 1, 2, 1, 2, 3, 4, 5} {
				all = append(all, come(g, l, 0, Slot{From: from(client)}))
			}
			check.That(t, all[5].over.Load() && places(all) == 8, "got %d places, want the other eight", places(all))
		})
	}
}

// With share, a client may hold a tenth beside whoever is there. Its own requests give way to
// each other in their order: robots behind the address of an office do not keep members out.
func TestRobotsBehindTheAddressOfAMemberDoNotKeepItOut(t *testing.T) {
	inBubble(t, func(t *testing.T, g *Gate) {
		l := Limits{Slots: 1, Wait: time.Hour, Queue: 20, Share: true}
		hold(g, l, "")
		var robots, others, members []*visit
		for i := range 20 {
			robots = append(robots, come(g, l, 0, turn(1, fairqueue.First, fmt.Sprint("robot", i))))
		}
		for i := range 20 {
			others = append(others, come(g, l, 0, turn(100+i, fairqueue.First, fmt.Sprint("other", i))))
		}
		check.That(t, places(robots) == 10 && places(others) == 10, "got %d and %d places, want ten each", places(robots), places(others))
		for i := range 12 {
			members = append(members, come(g, l, 0, turn(1, fairqueue.Member, fmt.Sprint("member", i))))
		}
		if places(members) != 10 || places(robots) != 0 || places(others) != 10 {
			t.Errorf("got %d, %d and %d places, want those of the robots given to members", places(members), places(robots), places(others))
		}
		elsewhere := several(3, g, l, 0, turn(2, fairqueue.Member, "elsewhere"))
		check.That(t, places(elsewhere) == 2 && places(others) == 8, "got %d and %d places, want a tenth for another member", places(elsewhere), places(others))
	})
}
