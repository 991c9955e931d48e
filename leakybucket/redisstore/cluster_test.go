package redisstore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
)

func TestSlotsAreThoseOfTheCluster(t *testing.T) {
	server := servertest.StartRedis(t, "--cluster-enabled", "yes")
	for _, key := range []string{
		"123456789", "", "a", "zone/192.0.2.7", "{a}b", "x{a}b", "{}a", "{a", "a}", "{{a}}", "{a}{b}", "}{a}", "x{}{a}", "é\xff", strings.Repeat("x", 1000),
	} {
		if key == "" {
			continue // redis-cli leaves it out
		}
		if got, want := fmt.Sprint(slotOf(key)), server.Do("cluster", "keyslot", key); got != want {
			t.Errorf("slot of %.40q: got %s, want %s", key, got, want)
		}
	}
}

func TestChargesGivenBackAreReportedAsNotPoured(t *testing.T) {
	c := servertest.StartRedisCluster(t)
	s := open(t, c.URL(), Options{})
	full := charge("full", leakybucket.Limit{Capacity: 1, Leak: 1e-6}, 1)
	mustTake(t, s, full)
	for i := range 20 { // before and after the slot of what is full
		k := charge(fmt.Sprint("k", i), leakybucket.Limit{Capacity: 10, Leak: 1e-6}, 3)
		shadow := k
		shadow.Shadow = true
		all := []leakybucket.Charge{k, full, k, shadow}
		decisions := make([]leakybucket.Decision, len(all))
		if err := s.Take(context.Background(), all, decisions); err != nil {
			t.Fatal(err)
		}
		for j, d := range decisions {
			if want := j != 1; d.Fits != want || d.Poured || want && d.Level != 0 {
				t.Errorf("charge %d: got %+v, want fits %v at level 0, and not poured", j, d, want)
			}
		}
		if got := levelOf(t, s, k) + levelOf(t, s, shadow); got > 1e-6 {
			t.Errorf("level after all was given back: got %v, want 0", got)
		}
		settlements := []leakybucket.Settlement{{Charge: k, Diff: 2}, {Charge: full, Diff: 0}, {Charge: shadow, Diff: 3}, {Charge: k, Diff: 1}}
		if err := s.Settle(context.Background(), settlements); err != nil {
			t.Fatal(err)
		}
		if k, shadow := levelOf(t, s, k), levelOf(t, s, shadow); k < 2.99 || k > 3.01 || shadow < 2.99 || shadow > 3.01 {
			t.Errorf("levels after a settlement by 2 and 1, and by 3: got %v and %v", k, shadow)
		}
	}
}

// TestChargesThatALaterSlotRefusesAreGivenBack needs a cluster, because
// everything else is atomic. In the end each bucket holds only what was admitted.
func TestChargesThatALaterSlotRefusesAreGivenBack(t *testing.T) {
	c := servertest.StartRedisCluster(t)
	s := open(t, c.URL(), Options{})
	const callers, rounds, capacity = 8, 20, 20
	roomy := func(key string) leakybucket.Charge { return charge(key, frozen, 1) }
	scarce := charge("scarce", leakybucket.Limit{Capacity: capacity, Leak: 1e-6}, 1)
	shadow := func(c leakybucket.Charge) leakybucket.Charge {
		c.Key, c.Shadow = "shadow "+c.Key, true
		return c
	}
	for _, test := range []struct {
		name             string
		charges          []leakybucket.Charge
		enforced, shadow int // how often they are poured
	}{
		{"enforced", []leakybucket.Charge{shadow(roomy("a")), roomy("a"), scarce, roomy("b"), roomy("c")}, capacity, capacity},
		{"shadow", []leakybucket.Charge{roomy("d"), shadow(roomy("d")), shadow(scarce), shadow(roomy("e")), roomy("e")}, callers * rounds, capacity},
	} {
		t.Run(test.name, func(t *testing.T) {
			var poured [2]atomic.Int64 // enforced, shadow
			var wg sync.WaitGroup
			for range callers {
				wg.Go(func() {
					decisions := make([]leakybucket.Decision, len(test.charges))
					for range rounds {
						if err := s.Take(context.Background(), test.charges, decisions); err != nil {
							t.Error(err)
							return
						}
						enforced, all := store.Fit(test.charges, decisions)
						for i, d := range decisions {
							if want := enforced && (all || !test.charges[i].Shadow); d.Poured != want {
								t.Errorf("take: got %+v, want poured %v of charge %d", decisions, want, i)
							}
						}
						if enforced {
							poured[0].Add(1)
						}
						if all {
							poured[1].Add(1)
						}
					}
				})
			}
			wg.Wait()
			if enforced, shadow := poured[0].Load(), poured[1].Load(); enforced != int64(test.enforced) || shadow != int64(test.shadow) {
				t.Errorf("poured: got %d enforced and %d shadow, want %d and %d", enforced, shadow, test.enforced, test.shadow)
			}
			for _, c := range test.charges {
				want := test.enforced
				if c.Shadow {
					want = test.shadow
				}
				// Units that leaked while a charge was there are not given back, though it
				// leaked but once for all of them.
				if got := levelOf(t, s, c); math.Abs(got-float64(want)) > leaked {
					t.Errorf("level of %s: got %v, want %d", c.Key, got, want)
				}
			}
		})
	}
}

// keyIn returns a key of the zone whose slot passes a test.
func keyIn(s *Store, passes func(slot uint16) bool) string {
	for i := 0; ; i++ {
		c := charge(fmt.Sprint("key", i), frozen, 1)
		if passes(s.slotOfCharge(&c)) {
			return c.Key
		}
	}
}

func TestChargesAreGivenBackWhenALaterSlotFails(t *testing.T) {
	c := servertest.StartRedisCluster(t)
	s := open(t, c.URL(), Options{})
	early := charge(keyIn(s, func(slot uint16) bool { return slot < 5000 }), frozen, 3)
	middle := charge(keyIn(s, func(slot uint16) bool { return 5000 < slot && slot < 15000 }), frozen, 3)
	bad := charge(keyIn(s, func(slot uint16) bool { return slot > 16000 }), frozen, 3)
	for _, node := range c.Nodes {
		_, _ = node.Try("lpush", s.name(bad.Zone, bad.Key, false), "x") // all but one say MOVED
	}
	for range 3 {
		decisions := []leakybucket.Decision{{Poured: true}, {Poured: true}, {Poured: true}} // of a former take
		err := s.Take(context.Background(), []leakybucket.Charge{bad, middle, early}, decisions)
		if !errors.Is(err, store.ErrBadBucket) {
			t.Fatalf("take with a key that is no bucket: got %v, want ErrBadBucket", err)
		}
		for _, ch := range []leakybucket.Charge{early, middle} {
			if got := levelOf(t, s, ch); got > 1e-6 {
				t.Errorf("level of %s after the take failed: got %v, want 0", ch.Key, got)
			}
		}
	}
}

// A node that hangs must not keep settlements from the others.
func TestSlotsAreSettledAtOnce(t *testing.T) {
	c := servertest.StartRedisCluster(t)
	s := open(t, c.URL(), Options{})
	var hung *servertest.Redis
	for _, node := range c.Nodes {
		if strings.HasPrefix(node.Do("role"), "master") {
			hung = node
		}
	}
	var settlements []leakybucket.Settlement
	var elsewhere []leakybucket.Charge
	for i := range 30 {
		ch := charge(fmt.Sprint("k", i), frozen, 1)
		mustTake(t, s, ch)
		settlements = append(settlements, leakybucket.Settlement{Charge: ch, Diff: 4})
		if strings.HasPrefix(hung.Do("get", s.name(ch.Zone, ch.Key, false)), "MOVED") {
			elsewhere = append(elsewhere, ch)
		}
	}
	if n := len(elsewhere); n == 0 || n == len(settlements) {
		t.Fatalf("got %d of %d keys on other nodes, want some", n, len(settlements))
	}
	hung.Pause()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	err := s.Settle(ctx, settlements)
	cancel()
	hung.Resume()
	c.Settled() // meanwhile a replica may have been about to take over
	if err == nil {
		t.Error("settlement with a node that hangs: got no error")
	}
	for _, ch := range elsewhere {
		if got := levelOf(t, s, ch); math.Abs(got-5) > leaked {
			t.Errorf("level of %s on a node that answers: got %v, want 5", ch.Key, got)
		}
	}
}

func TestManySettlementsOfManySlotsAreAllMade(t *testing.T) {
	c := servertest.StartRedisCluster(t)
	s := open(t, c.URL(), Options{})
	const many = 22_000
	settlements := make([]leakybucket.Settlement, many)
	for i := range settlements {
		settlements[i] = leakybucket.Settlement{Charge: charge(fmt.Sprint("k", i%(many/2)), frozen, 1), Diff: 1}
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := s.Settle(ctx, settlements); err != nil {
		t.Fatal(err)
	}
	for i := 0; i < many/2; i += 500 {
		if got := levelOf(t, s, charge(fmt.Sprint("k", i), frozen, 1)); math.Abs(got-2) > leaked {
			t.Errorf("level of k%d: got %v, want 2", i, got)
		}
	}
}

func TestClientsCannotChooseTheSlotOfTheirKey(t *testing.T) {
	slots := func(prefix string) map[uint16]bool {
		s, err := Open("redis+cluster://127.0.0.1:1", Options{Prefix: prefix})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		seen := make(map[uint16]bool)
		for i := range 100 {
			c := charge(fmt.Sprintf("{same}%d", i), leakybucket.Limit{Capacity: 1, Leak: 1}, 1)
			seen[s.slotOfCharge(&c)] = true
		}
		return seen
	}
	if got := len(slots("")); got < 90 {
		t.Errorf("a hundred keys with one tag: got them in %d slots, want about a hundred", got)
	}
	if got := len(slots("{site}:")); got != 1 {
		t.Errorf("with a tag in the prefix: got them in %d slots, want 1", got)
	}
}
