package sharedstore

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// banned is a charge to a bucket of 20 at 1/s that is blocked for an hour, then for
// a day.
func banned() leakybucket.Charge {
	return leakybucket.Charge{
		Zone: "z", Key: "someone", Limit: leakybucket.Limit{Capacity: 20, Leak: 1}, Cost: 1, Debt: 20,
		Block: &leakybucket.Ladder{Steps: []time.Duration{time.Hour, 24 * time.Hour}},
	}
}

// joinAll returns nodes of one remote store.
func joinAll(t *testing.T, n int) []*node {
	t.Helper()
	nodes := []*node{startNode(t, Options{Nodes: n})}
	for len(nodes) < n {
		nodes = append(nodes, join(t, nodes[0].remote, Options{Nodes: n}))
	}
	return nodes
}

// wantBlocked asks with a probe that would fit, on a node.
func (n *node) wantBlocked(c leakybucket.Charge, want time.Duration) {
	n.Helper()
	_, d := n.take(probe(c))
	got := time.Duration(0)
	if d.BlockedUntil != 0 {
		got = d.BlockedUntil.Sub(d.At)
	}
	if got < want-2*time.Second || got > want+100*time.Millisecond || d.Fits && want > 0 {
		n.Errorf("got %+v, a block of %v, want a block of %v", d, got, want)
	}
}

func TestABlockOfAnOutageHoldsOnAllNodesAfterIt(t *testing.T) {
	for _, shadow := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			nodes := joinAll(t, 4)
			reader, robot, page := banned(), banned(), nodes[0]
			reader.Key, reader.Shadow, robot.Shadow = "reader", leakybucket.ShadowIf(shadow), leakybucket.ShadowIf(shadow)
			page.remote.down.Store(true)
			page.wantAdmitted(6, reader, 5) // a quarter of 20, and blocked nowhere
			page.wantBlocked(robot, 0)
			page.wantAdmitted(20, robot, 5)
			if _, d := page.take(robot); d.Fits || !d.Began || d.BlockedUntil.Sub(d.At) != time.Hour {
				t.Errorf("the 21st at once: got %+v, want the beginning of a block", d)
			}
			page.wantBlocked(robot, time.Hour)
			<-time.After(30 * time.Second)
			page.wantBlocked(reader, 0)
			page.recover()
			rest := time.Hour - 30*time.Second - longestHold - 3*patience
			for _, n := range nodes {
				n.wantBlocked(robot, rest)
				n.wantAdmitted(3, reader, 3)
			}
			<-time.After(rest)
			nodes[3].wantAdmitted(1, robot, 1)
		})
	}
}

func TestABlockOfAnOutageHoldsUntilTheStoreHasHeardOfIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, Options{})
		n.remote.down.Store(true)
		n.wantAdmitted(30, banned(), 20)
		n.remote.deaf.Store(true) // takes succeed, and nothing can be told
		n.remote.down.Store(false)
		for range 5 {
			<-time.After(time.Second)
			n.wantAdmitted(3, banned(), 0)
		}
		synctest.Wait()
		if got := n.remote.level(t, banned()); got != 0 {
			t.Errorf("the store's bucket: got a level of %v, want none: nothing was admitted", got)
		}
		n.remote.deaf.Store(false)
		<-time.After(15 * time.Second)
		other := join(t, n.remote, Options{})
		other.wantBlocked(banned(), time.Hour-20*time.Second)
	})
}

// The store's clock is another one, and a block is told twice, late, and after another
// node has told a longer one.
func TestABlockIsNeverLongerThanItsStep(t *testing.T) {
	for _, apart := range []time.Duration{-time.Hour, 0, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			r := new(remote)
			<-time.After(2 * time.Hour)
			r.aside(apart)
			n, m := join(t, r, Options{}), join(t, r, Options{})
			r.down.Store(true)
			n.wantAdmitted(30, banned(), 20)
			<-time.After(10 * time.Second)
			m.wantAdmitted(30, banned(), 20)
			r.down.Store(false)
			r.lazy.Store(int64(60 * time.Millisecond)) // longer than the timeout: told again
			r.executes.Store(true)
			<-time.After(10 * time.Second)
			n.admits(1, banned())
			m.admits(1, banned())
			<-time.After(10 * time.Second)
			r.lazy.Store(0)
			<-time.After(10 * time.Second)
			other := join(t, r, Options{})
			other.wantBlocked(banned(), time.Hour-30*time.Second)
			<-time.After(time.Hour)
			other.wantAdmitted(1, banned(), 1)
		})
	}
}

func TestAShareThatOverflowsBlocksNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, Options{Nodes: 4})
		n.wantAdmitted(10, banned(), 10) // what the store has seen counts
		n.remote.down.Store(true)
		if got := n.admits(9, banned()); got > 5 {
			t.Errorf("got %d admitted, want at most a share", got)
		}
		n.wantBlocked(banned(), 0)
		for range 60 {
			<-time.After(time.Second)
			n.admits(1, banned()) // as fast as the whole bucket leaks
		}
		if _, d := n.take(probe(banned())); d.BlockedUntil != 0 {
			t.Errorf("within the whole limit: got %+v, want no block", d)
		}
		n.admits(20, banned())
		n.wantBlocked(banned(), time.Hour)
	})
}

// Requests that were given back were no overflow.
func TestWhatIsGivenBackInAnOutageBlocksNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, Options{Nodes: 4})
		n.remote.down.Store(true)
		for range 40 {
			c, d := n.take(banned())
			if !d.Fits {
				t.Fatalf("got %+v, want room: all was given back", d)
			}
			_ = n.settle(c, d, -1)
		}
	})
}

func TestABlockBeforeAReleaseIsNotTold(t *testing.T) {
	for _, before := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			nodes := joinAll(t, 2)
			n, c := nodes[0], banned()
			if before { // the store has a block, too
				n.admits(30, c)
				n.wantBlocked(c, time.Hour)
			}
			n.remote.down.Store(true)
			n.admits(30, c)
			n.wantBlocked(c, time.Hour)
			err := n.Reset(t.Context(), c.Zone, c.Key, false)
			if got, want := fmt.Sprint(err), "the store is told when it is back"; err == nil || got[max(0, len(got)-len(want)):] != want {
				t.Errorf("got %q, want it to end with %q", got, want)
			}
			n.wantAdmitted(2, c, 2)
			n.remote.down.Store(false)
			<-time.After(time.Second)
			n.wantAdmitted(1, c, 1) // at once
			<-time.After(5 * time.Second)
			synctest.Wait()
			nodes[1].wantBlocked(c, 0)
			nodes[1].wantAdmitted(1, c, 1)
		})
	}
}

// What a probe reserved nothing for is charged when the answer is known, long after the
// request was let in.
func TestSettledProbesBeginBlocksInAnOutage(t *testing.T) {
	for _, step := range []struct {
		ladder leakybucket.Ladder
		want   time.Duration
	}{
		{leakybucket.Ladder{Steps: []time.Duration{time.Hour}}, time.Hour},
		{leakybucket.Ladder{}, 40 * time.Second}, // to empty from the capacity and the debt
	} {
		synctest.Test(t, func(t *testing.T) {
			nodes := joinAll(t, 4)
			n, c := nodes[0], banned()
			c.Probe, c.Block = true, &step.ladder
			n.remote.down.Store(true)
			taken := make([]leakybucket.Charge, 70)
			were := make([]leakybucket.Decision, len(taken))
			for i := range taken {
				if taken[i], were[i] = n.take(c); !were[i].Fits || were[i].Poured {
					t.Fatalf("got %+v, want room: nothing is poured yet", were[i])
				}
			}
			<-time.After(10 * time.Second)
			for i := range 20 {
				_ = n.settle(taken[i], were[i], 1)
			}
			n.wantBlocked(c, 0)
			for i := range taken[20:] {
				_ = n.settle(taken[20+i], were[20+i], 1)
			}
			if _, d := n.take(c); d.Fits || !d.Began || d.BlockedUntil.Sub(d.At) != step.want {
				t.Errorf("got %+v, want the beginning of a block of %v", d, step.want)
			}
			n.recover()
			for _, n := range nodes {
				n.wantBlocked(c, step.want-longestHold-3*patience)
			}
		})
	}
}

// Without room for what it knows of a bucket, a node cannot tell whether more than its share
// is more than the limit.
func TestAFullLedgerBeginsNoBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, Options{Nodes: 4})
		n.remote.down.Store(true)
		n.wantAdmitted(failuresToOpen, hourly(100, 0), failuresToOpen)
		for i := range mostEntries + 1000 {
			c := hourly(100, 1)
			c.Zone, c.Key = "other", fmt.Sprint(i)
			n.take(c)
		}
		c := banned()
		if fits := n.admits(7, c); fits == 0 || fits == 7 {
			t.Errorf("got %d of 7 admitted, want the share of one node of four", fits)
		}
		n.wantBlocked(c, 0)
	})
}

// A node's copy of a bucket holds its share of what the store has, also of what it has told.
func TestAToldBucketIsNotBlockedInTheNextOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, Options{Nodes: 4})
		c := banned()
		c.Limit.Leak = 1.0 / 3600
		n.remote.down.Store(true)
		n.wantAdmitted(5, c, 5)
		n.recover()
		<-time.After(3 * time.Second)
		if got := n.remote.level(t, c); !near(got, 5) {
			t.Errorf("got a level of %v, want 5", got)
		}
		n.remote.down.Store(true)
		n.admits(failuresToOpen, hourly(100, 0))
		n.wantAdmitted(2, c, 2)
		n.wantBlocked(c, 0)
	})
}
