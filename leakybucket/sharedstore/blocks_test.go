package sharedstore

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// known returns the rest of the block that a node knows of.
func (n *node) known(c leakybucket.Charge) (rest time.Duration, current bool) {
	d, current := n.Known(&c)
	if d.BlockedUntil == 0 {
		return 0, current
	}
	return d.BlockedUntil.Sub(d.At), current
}

func TestConfirm(t *testing.T) {
	const length = 10 * time.Minute
	onNode(t, "once a second", Options{}, func(t *testing.T, n *node) {
		n.wantAdmitted(2, blocked(1), 1)
		n.remote.slow.Store(int64(time.Millisecond)) // so that all want to know while one asks
		before := n.remote.takes.Load()
		for range 10 {
			c := blocked(1)
			rest, _ := n.known(c)
			check.That(t, rest != 0, "got no block, want the one that runs")
			var all sync.WaitGroup
			for range 100 {
				all.Go(func() { n.Confirm(t.Context(), &c) })
			}
			all.Wait()
			time.Sleep(time.Second)
		}
		check.Equal(t, n.remote.takes.Load()-before, 9, "times the store was asked in ten seconds, want once a second after the first")
		got := n.remote.level(t, blocked(1))
		check.That(t, near(got, 1), "got level %v, want the 1 of before", got)
	})
	for _, test := range []struct {
		name  string
		fate  func(*node)
		rest  time.Duration
		level float64 // of one that was 60 units and leaks two in a second, after ten seconds
	}{
		{"the store knows it", func(*node) {}, length - 10*time.Second, 40},
		{"the store knows another level", func(n *node) { n.remote.fill(blocked(60), 7) }, length - 10*time.Second, 7},
		{"the store does not answer", func(n *node) {
			fate := func(*leakybucket.Charge) error { return errors.New("connection refused") }
			n.remote.fate.Store(&fate)
		}, length - 10*time.Second, 40},
		{"another node has released the client", func(n *node) { _ = n.remote.Reset(n.Context(), "z", "someone", false) }, 0, 0},
	} {
		onNode(t, test.name, Options{}, func(t *testing.T, n *node) {
			c := blocked(60)
			c.Limit.Leak = 2
			n.wantAdmitted(61, c, 60)
			time.Sleep(10 * time.Second)
			test.fate(n)
			n.Confirm(t.Context(), &c)
			d, current := n.Known(&c)
			if rest, _ := n.known(c); rest != test.rest || current != (rest > 0) || rest > 0 && d.Level != test.level {
				t.Errorf("got a block of %v, current %v, with level %v, want %v and %v", rest, current, d.Level, test.rest, test.level)
			}
		})
	}
}

// An answer to a question that was asked before a block began does not end it.
func TestAnAnswerOfBefore(t *testing.T) {
	withNode(t, Options{}, func(t *testing.T, n *node) {
		n.remote.slow.Store(int64(20 * time.Millisecond))
		began := time.Now()
		time.Sleep(time.Millisecond)
		n.wantAdmitted(2, blocked(1), 1)
		n.backend.blocks.learn([]leakybucket.Charge{blocked(1)}, make([]leakybucket.Decision, 1), began)
		rest, _ := n.known(blocked(1))
		check.That(t, rest != 0, "got no block, want the one that began meanwhile")
	})
}

// TestListingOfBlocks: a listing has the blocks that a take finds, in an outage and after it.
func TestListingOfBlocks(t *testing.T) {
	for _, nodes := range []int{1, 2} {
		withNode(t, Options{Nodes: nodes}, func(t *testing.T, n *node) {
			inStore, inOutage, both := blocked(1), blocked(2), blocked(3)
			inStore.Key, inOutage.Key, both.Key = "store", "outage", "both"
			n.admits(2, inStore)
			n.admits(3, both)
			wantListed := func(when string) {
				t.Helper()
				listed := make(map[string]bool)
				for e, err := range store.ListAll(t.Context(), n, store.Filter{Zone: "z", Scan: 1}) {
					check.OK(t, err)
					listed[e.Key] = listed[e.Key] || e.State.BlockedUntil > e.Now
				}
				for _, c := range []leakybucket.Charge{inStore, inOutage, both} {
					c.Probe, c.Cost = true, -1
					_, d := n.take(c)
					check.That(t, listed[c.Key] == (d.BlockedUntil != 0), "%d nodes, %s, %s: got it blocked %v in the listing, want %v", nodes, when, c.Key, listed[c.Key], d.BlockedUntil != 0)
				}
			}
			wantListed("before")
			n.remote.down.Store(true)
			n.admits(20, inOutage)
			n.admits(9, both)
			wantListed("in the outage")
			n.recover()
			wantListed("after it")
		})
	}
}
