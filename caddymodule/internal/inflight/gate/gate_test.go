package gate

import (
	"context"
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/inflight/fairqueue"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// String returns the name of the constant in lower case.
func (w Why) String() string {
	return [...]string{"admitted", "busy", "too long", "queue full", "exiting", "left"}[w]
}

// A sender is the prefix of a client.
type sender netip.Prefix

func (s sender) Client() netip.Prefix { return netip.Prefix(s) }

// from returns a client.
func from(n int) sender {
	return sender(netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}), 32))
}

// turn returns a request of a client that takes turns by a key.
func turn(n int, rank fairqueue.Rank, key string) Slot {
	s := Slot{From: from(n)}
	s.Claim = fairqueue.Claim{Rank: rank, Keys: [2]string{key}}
	return s
}

// A visit is a request in a test: admitted, served for some time, released.
type visit struct {
	leave  context.CancelFunc
	over   atomic.Bool // the wait: until then, nobody looks at what follows
	slot   *Slot
	result Result
	after  time.Duration // that Enter took
	held   time.Duration
}

// come sends a request that is served for so long, and returns when it waits or is over.
func come(g *Gate, l Limits, service time.Duration, s Slot) *visit {
	ctx, leave := context.WithCancel(context.Background())
	v := &visit{leave: leave}
	began := time.Now()
	go func() {
		if s.From == nil {
			s.From = sender{}
		}
		v.slot = &s
		v.result = g.Enter(ctx, nil, l, v.slot)
		v.after = time.Since(began)
		v.over.Store(true)
		if v.result.Why == Admitted {
			time.Sleep(service)
			v.held = v.slot.Release(true)
		}
	}()
	synctest.Wait()
	return v
}

// several are n requests in one instant.
func several(n int, g *Gate, l Limits, service time.Duration, s Slot) (visits []*visit) {
	for range n {
		visits = append(visits, come(g, l, service, s))
	}
	return visits
}

func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// wantWaits checks for how many seconds requests waited; a refusal is -1.
func wantWaits(t *testing.T, visits []*visit, want ...float64) {
	t.Helper()
	var got []float64
	for _, v := range visits {
		if v.result.Why != Admitted {
			got = append(got, -1)
			continue
		}
		got = append(got, v.after.Seconds())
		check.That(t, v.result.Waited == v.after, "got %v waited in %v", v.result.Waited, v.after)
	}
	check.Slices(t, got, want, "seconds: waits")
}

// wantWhy checks what became of requests.
func wantWhy(t *testing.T, visits []*visit, want ...Why) {
	t.Helper()
	var got []Why
	for _, v := range visits {
		got = append(got, v.result.Why)
	}
	check.Slices(t, got, want)
}

// places returns how many of the visits wait.
func places(visits []*visit) (n int) {
	for _, v := range visits {
		if !v.over.Load() {
			n++
		}
	}
	return n
}

// wantSums checks that the gate counts what there is.
func wantSums(t *testing.T, g *Gate) {
	t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	places := 0
	for client, waiting := range g.clients {
		for _, s := range waiting {
			check.That(t, s.client == client && s.place != 0, "got %+v among those of %v who wait", s, client)
		}
		places += len(waiting)
	}
	check.Equal(t, places, g.all.Waiting, "places")
}

// wantEmpty checks that a gate keeps nothing.
func wantEmpty(t *testing.T, g *Gate) {
	t.Helper()
	wantSums(t, g)
	load := g.Load()
	if load.Queued+load.Running+len(g.clients) > 0 || len(g.keys) > 0 || !g.keyless.Idle() {
		t.Errorf("got %+v, %d keys, %v, want none", load, len(g.keys), g.clients)
	}
}

// inBubble runs a test in virtual time, after which nothing may be left of the gate.
func inBubble(t *testing.T, test func(t *testing.T, g *Gate)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		g := new(Gate)
		test(t, g)
		pass(48 * time.Hour)
		wantEmpty(t, g)
	})
}

func TestAFreeSlotIsTakenAtOnce(t *testing.T) {
	g, l := new(Gate), Limits{Slots: 2}
	var slots [5]Slot
	for i, test := range []struct {
		key  string
		want Result
	}{{"k", Result{}}, {"k", Result{}}, {"k", Result{Why: Busy}}, {"another", Result{}}} {
		slots[i].Key = test.key
		check.Equal(t, g.Enter(t.Context(), nil, l, &slots[i]), test.want, "request %d", i)
	}
	for _, i := range []int{0, 0, 0, 2, 3, 4} { // two were not given
		slots[i].Release(true)
	}
	load := g.Load()
	check.That(t, load.Running == 1, "got %+v after one of two was released three times, want 1 of 2", load)
	slots[1].Release(true)
	wantEmpty(t, g)
}

// Whatever ends a wait: the place, the turn and the slot are given back.
func TestAClientThatLeavesHoldsNobodyUp(t *testing.T) {
	for _, share := range []bool{false, true} {
		inBubble(t, func(t *testing.T, g *Gate) {
			l := Limits{Slots: 1, Wait: time.Minute, Queue: 10, Share: share}
			var visits []*visit
			for i, rank := range []fairqueue.Rank{fairqueue.First, fairqueue.Member, fairqueue.First} {
				visits = append(visits, come(g, l, time.Second, turn(1, rank, fmt.Sprint(i))))
			}
			pass(500 * time.Millisecond)
			check.That(t, visits[1].slot.Release(true) == 0 && g.Load().Running == 1, "got a slot given back that is still waited for, want none")
			visits[1].leave()
			pass(0)
			got := visits[1].result
			check.That(t, got.Why == Left && got.Waited == 500*time.Millisecond, "got %+v, want it left after half a second", got)
			pass(time.Minute)
			wantWaits(t, []*visit{visits[0], visits[2]}, 0, 1)
		})
	}
}

// Of what happens in one instant a select takes either.
func TestAClientThatLeavesWhenItsSlotComesFreeIsNotServed(t *testing.T) {
	for range 50 {
		inBubble(t, func(t *testing.T, g *Gate) {
			l := Limits{Slots: 1, Wait: time.Minute, Queue: 10, Share: true}
			var first Slot
			g.Enter(t.Context(), nil, l, &first)
			next := come(g, l, time.Hour, Slot{})
			pass(time.Second)
			next.leave()
			first.Release(true)
			pass(0)
			wantWhy(t, []*visit{next}, Left)
			check.Equal(t, g.Load().Mean, time.Second, "the mean, want a second: the other was not served")
		})
	}
}

func TestAtTheEndOfTheProcessNobodyWaits(t *testing.T) {
	inBubble(t, func(t *testing.T, g *Gate) {
		exiting, results := make(chan struct{}), make(chan Result, 3)
		l := Limits{Slots: 1, Wait: time.Minute, Queue: 10, Share: true}
		enter := func(s Slot) {
			result := g.Enter(t.Context(), exiting, l, &s)
			if results <- result; result.Why == Admitted {
				time.Sleep(10 * time.Second)
				s.Release(true)
			}
		}
		for _, s := range []Slot{turn(1, fairqueue.First, "a"), turn(2, fairqueue.First, "b")} {
			go enter(s)
			synctest.Wait()
		}
		close(exiting)
		synctest.Wait()
		go enter(turn(4, fairqueue.First, "d"))
		for i := range 3 {
			if got := (<-results).Why; i == 0 && got != Admitted || i > 0 && got != Exiting {
				t.Errorf("request %d: got %v", i, got)
			}
		}
	})
}

func TestLimitsComeWithEachRequest(t *testing.T) {
	inBubble(t, func(t *testing.T, g *Gate) {
		old, now := Limits{Slots: 3, Wait: time.Hour, Queue: 10}, Limits{Slots: 1}
		visits := append(several(4, g, old, 10*time.Second, Slot{}), come(g, now, 10*time.Second, Slot{}))
		pass(9 * time.Second)
		visits = append(visits, come(g, now, 10*time.Second, Slot{}))
		pass(time.Second) // the three have ended, and the fourth is served
		visits = append(visits, come(g, now, 10*time.Second, Slot{}))
		pass(10 * time.Second)
		visits = append(visits, several(2, g, now, 10*time.Second, Slot{})...)
		pass(time.Minute)
		wantWaits(t, visits, 0, 0, 0, 10, -1, -1, -1, 0, -1)
	})
	inBubble(t, func(t *testing.T, g *Gate) { // more slots go to those who wait first
		one, two := Limits{Slots: 1, Wait: time.Hour, Queue: 10}, Limits{Slots: 2, Wait: time.Hour, Queue: 10}
		visits := []*visit{come(g, one, 50*time.Minute, Slot{}), come(g, one, time.Minute, Slot{}), come(g, one, 0, Slot{})}
		pass(time.Second)
		visits = append(visits, come(g, two, 0, Slot{}))
		pass(time.Hour)
		wantWaits(t, visits, 0, 1, 61, 60)
	})
}

// More slots go to those who wait first. Of fewer, the surplus drains.
func TestLimitsThatChangeHoldForThoseWhoWait(t *testing.T) {
	for _, share := range []bool{false, true} {
		inBubble(t, func(t *testing.T, g *Gate) {
			one := Limits{Slots: 1, Wait: 24 * time.Hour, Queue: 1000, Share: share}
			three := one
			three.Slots = 3
			var visits []*visit
			for i := range 6 {
				visits = append(visits, come(g, one, 10*time.Second, turn(i, fairqueue.First, fmt.Sprint(i))))
			}
			pass(time.Second)
			g.SetLimits(three)
			pass(time.Second)
			g.SetLimits(one)
			pass(time.Minute)
			wantWaits(t, visits, 0, 1, 1, 11, 21, 31)
		})
	}
}

// Else a newcomer would take the place of another one, and be refused all the same.
func TestNobodyLosesItsPlaceInAShorterQueue(t *testing.T) {
	inBubble(t, func(t *testing.T, g *Gate) {
		l := Limits{Slots: 1, Wait: time.Hour, Queue: 8}
		hold(g, l, "")
		visits := several(4, g, l, 0, Slot{From: from(1)})
		l.Queue = 3
		late := come(g, l, 0, Slot{From: from(2)})
		check.That(t, late.result.Why == QueueFull && places(visits) == 4, "got %v and %d places, want it refused and four", late.result.Why, places(visits))
	})
}

// A request that was not served is no part of the mean, and its turn is refunded.
func TestARequestThatIsNotServedCostsNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, g *Gate) {
		l := Limits{Slots: 1, Wait: time.Hour, Queue: 10, Share: true}
		s := turn(1, fairqueue.First, "a")
		g.Enter(t.Context(), nil, l, &s)
		visits := []*visit{come(g, l, time.Second, turn(2, fairqueue.First, "b")), come(g, l, time.Second, turn(1, fairqueue.First, "a"))}
		pass(time.Minute)
		held := s.Release(false)
		check.That(t, held == time.Minute && g.Load().Mean == time.Second, "got %v held and a mean of %v, want a minute that does not count", held, g.Load().Mean)
		next := come(g, l, time.Second, turn(1, fairqueue.First, "a"))
		pass(time.Minute)
		wantWaits(t, append(visits, next), 60, 61, 2)
		check.Equal(t, next.held, time.Second, "held, want nothing of the wait")
	})
}

func TestWatchCountsOnArrival(t *testing.T) {
	g := new(Gate)
	var over []*Slot
	for i, test := range []struct {
		key  string
		want int
	}{{"k", 0}, {"k", 1}, {"k", 2}, {"another", 0}} {
		others, s := g.Watch(test.key)
		check.Equal(t, others, test.want, "request %d: others", i)
		over = append(over, s, s)
	}
	got := g.Load()
	check.That(t, got.Running == 4 && got.Queued == 0, "got %+v, want four in flight", got)
	for _, s := range over {
		s.Release(false)
	}
	wantEmpty(t, g)
}
