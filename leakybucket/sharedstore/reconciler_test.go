package sharedstore

import (
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// Clients may go on with other nodes after an outage.
func TestTheStoreIsToldOfBucketsThatNobodyAsksForAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, Options{Nodes: 2, Zone: func(string) ZoneOptions { return ZoneOptions{MaxCost: 8} }})
		n.remote.down.Store(true)
		var charges []leakybucket.Charge
		for i := range 2*mostAtOnce + 1 {
			c := hourly(10, 2)
			c.Key = strconv.Itoa(i)
			charges = append(charges, c)
			n.wantAdmitted(3, c, 3)
		}
		<-time.After(time.Hour)
		before := n.remote.takes.Load()
		n.recover()
		for _, c := range charges {
			if got, want := n.remote.level(t, c), 5.5; !near(got, want) { // half of what leaks in an hour has
				t.Fatalf("bucket %s: got a level of %v, want %v", c.Key, got, want)
			}
		}
		const probes, asks = successesToClose, 3 // many buckets at once
		if got := int(n.remote.takes.Load() - before); got < asks || got > asks+probes {
			t.Errorf("got the store asked %d times, want %d, and %d probes at most", got, asks, probes)
		}
		told := n.remote.takes.Load()
		if <-time.After(10 * reconcileEvery); n.remote.takes.Load() != told {
			t.Errorf("got the store asked %d times with nothing to tell, want never", n.remote.takes.Load()-told)
		}
	})
}

func TestReconcilingForgetsNoBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, Options{})
		c := leakybucket.Charge{
			Zone: "z", Key: "k", Limit: leakybucket.Limit{Capacity: 4, Leak: 0.001}, Cost: 3,
			Block: &leakybucket.Ladder{Steps: []time.Duration{time.Hour}},
		}
		n.wantAdmitted(1, c, 1)
		n.remote.down.Store(true)
		small := c
		small.Cost = 1
		n.wantAdmitted(1, small, 1)
		n.remote.down.Store(false)
		if err := n.remote.Store.Take(t.Context(), []leakybucket.Charge{c}, make([]leakybucket.Decision, 1)); err != nil { // by another node
			t.Fatal(err)
		}
		n.recover()
		if got := n.remote.level(t, c); !near(got, 4) {
			t.Errorf("got a level of %v, want 4", got)
		}
		<-time.After(50 * time.Minute)
		n.wantAdmitted(1, c, 0)
		n.remote.down.Store(true)
		n.wantAdmitted(1, c, 0)
	})
}

func TestTheReconcilerEndsWithItsBackend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, Options{})
		n.remote.down.Store(true)
		n.wantAdmitted(5, hourly(10, 1), 5)
		<-time.After(time.Minute)
		_ = n.backend.Destruct()
		synctest.Wait()
		wantEnded(t, "Backend).reconcile")
		n.wantAdmitted(5, hourly(10, 1), 5)
		wantEnded(t, "Backend).reconcile")
	})
}

// wantEnded checks that functions run in no goroutine.
func wantEnded(t *testing.T, functions ...string) {
	t.Helper()
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	for _, f := range functions {
		if strings.Contains(string(stacks), f) {
			t.Errorf("got %s running, want it ended", f)
		}
	}
}

// The time is that of the clock which the reconciler goes by: rounds of two seconds.
func TestTwentyThousandBucketsAreToldInOneRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const many = 20_000
		n := startNode(t, Options{})
		n.remote.down.Store(true)
		c := hourly(10, 3)
		for i := range many {
			c.Key = strconv.Itoa(i)
			n.take(c)
		}
		n.remote.down.Store(false)
		<-time.After(reconcileEvery + patience) // one round, whenever its ticker began
		synctest.Wait()
		untold := 0
		for _, name := range n.backend.ledger.names() {
			if e, found := n.backend.ledger.get(name, time.Now()); found && e.own != 0 {
				untold++
			}
		}
		if untold > 0 {
			t.Errorf("got %d of %d buckets untold after one round, want none", untold, many)
		}
		if <-time.After(reconcileEvery); !n.backend.ledger.empty() {
			t.Errorf("after another round: got %d entries in the ledger, want none", len(n.backend.ledger.entries))
		}
		for _, key := range []string{"0", "7777", "19999"} {
			if c.Key = key; !near(n.remote.level(t, c), 3) {
				t.Errorf("bucket %s: got a level of %v, want 3", key, n.remote.level(t, c))
			}
		}
	})
}
