package sharedstore

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// blocked is hourly with a ladder.
func blocked(capacity float64) leakybucket.Charge {
	c := hourly(capacity, 1)
	c.Block = &leakybucket.Ladder{Steps: []time.Duration{10 * time.Minute}}
	return c
}

// TestBound: whatever the store does, a client gets at most what the shared bucket admits,
// and what each node's local bucket does.
func TestBound(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			nodes := []int{1, 2, 3, 6}[rng.IntN(4)]
			shared := newRemote()
			var all []*node
			for range nodes {
				all = append(all, join(t, shared, Options{Nodes: nodes}))
			}
			const capacity, leak = 20.0, 0.5
			c := leakybucket.Charge{Zone: "z", Key: "k", Limit: leakybucket.Limit{Capacity: capacity, Leak: leak}, Cost: 1, Debt: capacity}
			admitted, began := 0.0, time.Now()
			for range 60 {
				shared.down.Store(rng.IntN(3) == 0)
				shared.hung.Store(rng.IntN(3) == 0)
				shared.slow.Store(int64(rng.IntN(3)) * int64(30*time.Millisecond))
				for range 60 {
					if charge, d := all[rng.IntN(nodes)].take(c); d.Poured {
						admitted += charge.Cost
					}
					time.Sleep(time.Duration(rng.IntN(100)) * time.Millisecond)
				}
			}
			elapsed := time.Since(began).Seconds()
			share := capacity / float64(nodes)
			bound := capacity + leak*elapsed + float64(nodes)*(share+leak/float64(nodes)*elapsed)
			check.That(t, admitted <= bound*(1+1e-9) && admitted >= capacity, "seed %d, %d nodes: got %v admitted in %.0f s, want at most %.1f", seed, nodes, admitted, elapsed, bound)
		})
	}
}

func TestLocalBuckets(t *testing.T) {
	withNode(t, Options{Nodes: 2}, func(t *testing.T, n *node) {
		c := hourly(10, 1)
		n.wantAdmitted(4, c, 4)
		n.remote.down.Store(true)
		n.wantAdmitted(1, c, 1)
		check.Equal(t, n.remote.takes.Load(), 5, "calls: one that failed may have been charged, and is not made again")
		n.wantAdmitted(8, c, 4)
		n.recover()
		got := n.remote.level(t, c)
		check.That(t, near(got, 4), "after an outage: got level %v in the store, want the 4 of before", got)
		n.wantAdmitted(9, c, 6)
		n.remote.down.Store(true)
		n.wantAdmitted(9, c, 0) // the local bucket was kept
		time.Sleep(2 * time.Hour)
		n.wantAdmitted(9, c, 1) // half of what has leaked
	})
}

// TestShare: limits are divided, but an empty bucket takes any cost that fits the whole one.
func TestShare(t *testing.T) {
	for _, test := range []struct {
		nodes                   int
		capacity, cost, maxCost float64
		want                    int
	}{
		{1, 12, 1, 0, 12},
		{6, 12, 1, 0, 2},
		{6, 10, 1, 1, 1},
		{6, 10, 5, 5, 1},
		{6, 4, 4, 4, 1},
		{6, 12, 12, 0, 1},
		{6, 12, 100, 0, 0}, // it never fits
		{6, 12, 0.5, 0, 4},
		{6, 12, math.NaN(), 0, 0},
	} {
		name := fmt.Sprintf("%v of %v by %d", test.cost, test.capacity, test.nodes)
		o := Options{Nodes: test.nodes, Zone: func(string) ZoneOptions { return ZoneOptions{MaxCost: test.maxCost} }}
		onNode(t, name, o, func(t *testing.T, n *node) {
			n.remote.down.Store(true)
			n.wantAdmitted(20, hourly(test.capacity, test.cost), test.want)
			l := check.Must(leakybucket.NewLimiter(n, leakybucket.Limit{Capacity: test.capacity, Leak: 1}, leakybucket.LimiterOptions{}))(t)
			r, _ := l.Take(t.Context(), "k", test.cost)
			check.That(t, r.Remaining >= 0 && r.Limit().Validate() == nil, "got %+v, want numbers that make sense", r)
		})
	}
}

// TestALargeCostDoesNotWidenTheShare: it takes as long to leak as it would in a larger one.
func TestALargeCostDoesNotWidenTheShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, c := startNode(t, Options{Nodes: 6}), hourly(1, 1)
		n.remote.down.Store(true)
		n.wantAdmitted(2, c, 1)
		for range 5 {
			time.Sleep(time.Hour)
			n.wantAdmitted(1, c, 0)
		}
		time.Sleep(time.Hour)
		n.wantAdmitted(2, c, 1)
	})
}

// TestWait: who waits in an outage waits for this node's share of the limit, here 1 and 0.25 a second.
func TestWait(t *testing.T) {
	withNode(t, Options{Nodes: 4}, func(t *testing.T, n *node) {
		l := check.Must(leakybucket.NewLimiter(n, leakybucket.Limit{Capacity: 4, Leak: 1}, leakybucket.LimiterOptions{}))(t)
		n.remote.down.Store(true)
		for i, want := range []time.Duration{0, 4 * time.Second, 4 * time.Second} {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			began := time.Now()
			check.NoError(t, l.Wait(ctx, "k", 1), "wait %d", i)
			check.Equal(t, time.Since(began), want, "how long wait %d took", i)
			cancel()
		}
	})
}

func TestPolicies(t *testing.T) {
	zone := func(name string) (o ZoneOptions) {
		o.Policy, _ = ParsePolicy(name)
		return o
	}
	of := func(zone string) leakybucket.Charge {
		c := hourly(2, 1)
		c.Zone = zone
		return c
	}
	shadow := func(zone string) leakybucket.Charge {
		c := of(zone)
		c.Shadow = true
		return c
	}
	for _, test := range []struct {
		name    string
		charges []leakybucket.Charge
		fits    []bool
		poured  []bool
	}{
		{"local", []leakybucket.Charge{of("local")}, []bool{true}, []bool{true}},
		{"allow", []leakybucket.Charge{of("allow")}, []bool{true}, []bool{false}},
		{"deny", []leakybucket.Charge{of("deny")}, []bool{false}, []bool{false}},
		{"deny beside local", []leakybucket.Charge{of("local"), of("deny")}, []bool{true, false}, []bool{false, false}},
		{"allow beside local", []leakybucket.Charge{of("local"), of("allow")}, []bool{true, true}, []bool{true, false}},
		{"deny in shadow", []leakybucket.Charge{of("local"), shadow("deny"), shadow("local")}, []bool{true, false, true}, []bool{true, false, false}},
		{"deny beside shadow", []leakybucket.Charge{of("deny"), shadow("local")}, []bool{false, true}, []bool{false, false}},
	} {
		onNode(t, test.name, Options{Zone: zone}, func(t *testing.T, n *node) {
			n.remote.down.Store(true)
			for i := range test.charges {
				test.charges[i].Key = fmt.Sprint(i) // buckets of their own
			}
			charges, decisions := n.ask(test.charges...)
			for i, d := range decisions {
				local := charges[i].Zone == "local"
				if d.Fits != test.fits[i] || d.Poured != test.poured[i] || d.Undecided == local || d.Local != local {
					t.Errorf("charge %d: got %+v, want fits %v, poured %v, by a local bucket %v", i, d, test.fits[i], test.poured[i], local)
				}
			}
		})
	}
}

func TestBlocks(t *testing.T) {
	wants := func(n *node, c leakybucket.Charge, rest time.Duration, what string) {
		n.Helper()
		_, d := n.take(c)
		got := time.Duration(0)
		if d.BlockedUntil != 0 {
			got = d.BlockedUntil.Sub(d.At)
		}
		if got < rest-time.Minute || got > rest || rest > 0 && (d.Fits || d.Undecided) {
			n.Errorf("%s: got a block of %v and %+v, want about %v", what, got, d, rest)
		}
	}
	const length = 10 * time.Minute
	onNode(t, "begins in an outage", Options{}, func(t *testing.T, n *node) {
		n.remote.down.Store(true)
		n.wantAdmitted(5, blocked(3), 3)
		n.recover()
		wants(n, blocked(3), length, "after the outage")
		free := hourly(3, 1)
		free.Key = "another"
		if _, d := n.ask(free, blocked(3)); d[0].Poured || !d[0].Fits {
			t.Errorf("beside a blocked bucket: got %+v, want it left as it is", d[0])
		}
		shadowed := blocked(3)
		shadowed.Shadow = true
		check.That(t, n.admits(1, shadowed) == 1, "in shadow: got a block of the enforced bucket")
		time.Sleep(length)
		n.wantAdmitted(5, blocked(3), 3)
	})
	onNode(t, "is shortened by a reload", Options{}, func(t *testing.T, n *node) {
		n.remote.down.Store(true)
		n.wantAdmitted(5, blocked(3), 3)
		n.recover()
		shorter := blocked(3)
		shorter.Block = &leakybucket.Ladder{Steps: []time.Duration{time.Minute}}
		n.wantAdmitted(3, shorter, 3)
	})
	onNode(t, "begins in shadow", Options{}, func(t *testing.T, n *node) {
		n.remote.down.Store(true)
		watched, enforced := blocked(1), hourly(9, 1)
		watched.Shadow, enforced.Key = true, "enforced"
		for range 3 {
			n.ask(watched, enforced)
		}
		n.recover()
		other := watched
		other.Key = "other"
		_, d := n.ask(watched, enforced, other)
		check.That(t, !d[0].Fits && d[0].BlockedUntil != 0 && d[1].Poured && d[2].Fits && !d[2].Poured, "got %+v, want the shadow blocked, the enforced poured and the other shadow held", d)
	})
	onNode(t, "begins on no share", Options{Nodes: 3}, func(t *testing.T, n *node) {
		n.remote.down.Store(true)
		n.wantAdmitted(50, blocked(3), 1)
		wants(n, blocked(3), 0, "in the outage")
		n.recover()
		n.wantAdmitted(5, blocked(3), 3)
	})
	for _, policy := range []Policy{Local, Allow, Deny} {
		onNode(t, "of the store holds by "+policy.String(), Options{Nodes: 3, Zone: policies(policy)}, func(t *testing.T, n *node) {
			n.wantAdmitted(5, blocked(3), 3)
			n.remote.hung.Store(true)
			wants(n, blocked(3), length, "in the outage")
			n.recover()
			_ = n.remote.Reset(t.Context(), "z", "someone", false) // by another node
			n.wantAdmitted(1, blocked(3), 1)
			n.remote.down.Store(true)
			if policy != Deny {
				n.wantAdmitted(1, blocked(3), 1)
			}
		})
	}
	onNode(t, "ends by a reset", Options{}, func(t *testing.T, n *node) {
		n.wantAdmitted(5, blocked(3), 3)
		n.remote.down.Store(true)
		n.wantAdmitted(30, blocked(3), 0)
		check.Is(t, n.Reset(t.Context(), "z", "someone", false), ErrDown, "a reset in an outage, want that the store is down")
		n.wantAdmitted(5, blocked(3), 3)
		n.recover()
		wants(n, blocked(3), length, "in the store, which was told nothing")
		check.NoError(t, n.Reset(t.Context(), "z", "someone", false))
		n.wantAdmitted(3, blocked(3), 3)
	})
}

// TestClocks: the store's clock is an hour off, and is set by an hour.
func TestClocks(t *testing.T) {
	for _, off := range []time.Duration{-time.Hour, time.Hour} {
		withNode(t, Options{}, func(t *testing.T, n *node) {
			n.remote.aside(off)
			n.wantAdmitted(5, blocked(3), 3)
			n.remote.down.Store(true)
			n.wantAdmitted(30, blocked(3), 0)
			n.recover()
			n.wantAdmitted(1, blocked(3), 0)
			time.Sleep(10 * time.Minute)
			n.wantAdmitted(5, blocked(30), 5)
		})
	}
}

func TestSettling(t *testing.T) {
	onNode(t, "where it was taken", Options{Nodes: 2}, func(t *testing.T, n *node) {
		c, d := n.take(hourly(10, 1))
		n.remote.down.Store(true)
		local, was := n.take(hourly(10, 1))
		check.NoError(t, n.settle(local, was, 3))
		n.wantAdmitted(5, hourly(10, 1), 1)
		n.recover()
		err := n.settle(c, d, 5)
		check.That(t, err == nil && near(n.remote.level(t, c), 6), "got %v and level %v in the store, want none and 6", err, n.remote.level(t, c))
		n.wantUnsettled(nil)
	})
	onNode(t, "is lost", Options{}, func(t *testing.T, n *node) {
		c, d := n.take(hourly(10, 1))
		n.remote.deaf.Store(true)
		check.That(t, n.settle(c, d, 5) != nil, "a store that fails: got no error")
		n.remote.down.Store(true)
		n.admits(30, c)
		check.Is(t, n.settle(c, d, 5), ErrDown, "in an outage, want that the store is down")
		n.wantUnsettled(map[string]int{"z": 2})
		n.recover()
		got := n.remote.level(t, c)
		check.That(t, near(got, 1), "got level %v, want the 1 that was reserved", got)
	})
	onNode(t, "of what no bucket took", Options{Zone: policies(Allow)}, func(t *testing.T, n *node) {
		n.remote.down.Store(true)
		c, d := n.take(hourly(10, 1))
		err := n.settle(c, d, 5)
		check.That(t, err == nil && d.Undecided, "got %+v and error %v, want it undecided and none", d, err)
		n.wantUnsettled(map[string]int{"z": 1})
	})
	onNode(t, "is slow", Options{}, func(t *testing.T, n *node) {
		c, d := n.take(hourly(10, 1))
		n.remote.slow.Store(int64(40 * time.Millisecond))
		began := time.Now()
		err := n.settle(c, d, 5)
		check.That(t, err == nil && time.Since(began) == DefaultTimeout/5, "got %v after %v, want none after a fifth of the timeout", err, time.Since(began))
		time.Sleep(time.Second)
		got := n.remote.level(t, c)
		check.That(t, near(got, 6), "got level %v, want 6", got)
	})
}
