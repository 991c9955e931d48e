package sharedstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// A remote is a store that other nodes would share, and what is the matter with
// it.
type remote struct {
	*memstore.Store
	takes, settles, closed atomic.Int32

	down atomic.Bool                                     // it refuses at once
	hung atomic.Bool                                     // it does not answer
	deaf atomic.Bool                                     // it settles nothing
	slow atomic.Int64                                    // how long it takes to execute a call and answer, in nanoseconds
	fate atomic.Pointer[func(*leakybucket.Charge) error] // of a take; nil if all is well
}

func (r *remote) answer(ctx context.Context) error {
	switch {
	case r.hung.Load():
		<-ctx.Done()
		return ctx.Err()
	case r.down.Load():
		return errors.New("connection refused")
	}
	after := time.Duration(r.slow.Load())
	if after == 0 {
		return nil // two timers that are due at once fail the race detector: see go.dev/issue/78156
	}
	select {
	case <-time.After(after):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (r *remote) Take(ctx context.Context, charges []leakybucket.Charge, decisions []leakybucket.Decision) error {
	if charges[0].Zone != "@probe" {
		r.takes.Add(1)
	}
	if err := r.answer(ctx); err != nil {
		return err
	}
	if fate := r.fate.Load(); fate != nil {
		if err := (*fate)(&charges[0]); err != nil {
			return err
		}
	}
	return r.Store.Take(ctx, charges, decisions)
}

func (r *remote) Settle(ctx context.Context, settlements []leakybucket.Settlement) error {
	r.settles.Add(1)
	if err := r.answer(ctx); err != nil {
		return err
	}
	if r.deaf.Load() {
		return errors.New("connection reset")
	}
	return r.Store.Settle(ctx, settlements)
}

// aside sets the store's clock, which was never read before, by so much.
func (r *remote) aside(by time.Duration) {
	r.Store = memstore.New(memstore.Options{Clock: func() leakybucket.Instant {
		return leakybucket.Instant(time.Now().Add(by).UnixMicro())
	}})
}

func (r *remote) Close() { r.closed.Add(1) }

// level returns how full the shared bucket of a charge is.
func (r *remote) level(t *testing.T, c leakybucket.Charge) float64 {
	t.Helper()
	c.Cost, c.Probe, c.Block = -1, true, nil
	var d [1]leakybucket.Decision
	check.OK(t, r.Store.Take(t.Context(), []leakybucket.Charge{c}, d[:]))
	return d[0].Level
}

// fill leaves the shared bucket of a charge with a level, and blocked as it was.
func (r *remote) fill(c leakybucket.Charge, level float64) {
	state := r.State(&c)
	state.Level, state.At = level, r.Now()
	r.Put(&c, state)
}

// A witness is an observer that remembers.
type witness struct {
	mu        sync.Mutex
	said      []string
	errors    int
	unsettled map[string]int
	tell      func() // called in each call, if there is one
}

func (w *witness) note(format string, args ...any) {
	w.mu.Lock()
	w.said = append(w.said, fmt.Sprintf(format, args...))
	w.mu.Unlock()
	if w.tell != nil {
		w.tell()
	}
}

func (w *witness) Down(err error)                { w.note("down: %v", err) }
func (w *witness) Up(after time.Duration)        { w.note("up after %v", after) }
func (w *witness) Failed(what string, err error) { w.note("%.9s: %v", what, err) }
func (w *witness) Warned(text string)            { w.note("warned: %s", text) }

func (w *witness) Errors() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.errors++
}

func (w *witness) Unsettled(zone string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.unsettled == nil {
		w.unsettled = make(map[string]int)
	}
	w.unsettled[zone]++
}

func (w *witness) heard() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.said)
}

// A node is one Caddy: a backend and a config's store of it.
type node struct {
	*testing.T
	*Store
	remote  *remote
	local   *memstore.Store
	backend *Backend
	witness *witness
}

// startNode returns a node whose remote store is well and was reached. It must be called in
// the bubble of a test, and its backend is closed at the end of that.
func startNode(t *testing.T, o Options) *node {
	t.Helper()
	return join(t, newRemote(), o)
}

// withNode runs a test in a bubble, with a node that has been started.
func withNode(t *testing.T, o Options, test func(t *testing.T, n *node)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, startNode(t, o)) })
}

// onNode is withNode in a subtest.
func onNode(t *testing.T, name string, o Options, test func(t *testing.T, n *node)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { withNode(t, o, test) })
}

func newRemote() *remote { return &remote{Store: memstore.New(memstore.Options{})} }

// join returns a node of a remote store that exists.
func join(t *testing.T, r *remote, o Options) *node {
	t.Helper()
	n := begin(t, r, o)
	n.remote = r
	n.backend.Attach(n.witness)
	synctest.Wait()
	return n
}

// ask takes some charges and returns them as they were left, with the decisions.
func (n *node) ask(charges ...leakybucket.Charge) ([]leakybucket.Charge, []leakybucket.Decision) {
	n.Helper()
	decisions := make([]leakybucket.Decision, len(charges))
	check.OK(n, n.Take(n.Context(), charges, decisions))
	return charges, decisions
}

// take takes one charge.
func (n *node) take(c leakybucket.Charge) (leakybucket.Charge, leakybucket.Decision) {
	n.Helper()
	charges, decisions := n.ask(c)
	return charges[0], decisions[0]
}

// admits takes a charge some times and returns how often it fits.
func (n *node) admits(times int, c leakybucket.Charge) (fits int) {
	n.Helper()
	for range times {
		if _, d := n.take(c); d.Fits {
			fits++
		}
	}
	return fits
}

func (n *node) wantAdmitted(times int, c leakybucket.Charge, want int) {
	n.Helper()
	check.Equal(n, n.admits(times, c), want, "%d takes of %v: those that fit", times, c.Cost)
}

func (n *node) settle(c leakybucket.Charge, was leakybucket.Decision, diff float64) error {
	return n.Settle(n.Context(), []leakybucket.Settlement{{Charge: c, Was: was, Diff: diff}})
}

func (n *node) wantUnsettled(want map[string]int) {
	n.Helper()
	synctest.Wait()
	n.witness.mu.Lock()
	defer n.witness.mu.Unlock()
	got := n.witness.unsettled
	check.That(n, maps.Equal(got, want), "unsettled: got %v, want %v", got, want)
}

// wantHeard wants the beginnings of what the observer was told.
func (n *node) wantHeard(want ...string) {
	n.Helper()
	synctest.Wait()
	got := n.witness.heard()
	check.That(n, slices.EqualFunc(got, want, strings.HasPrefix), "the observer: got %q, want %q", got, want)
}

// recover lets the remote store answer again, and waits until it is asked again.
func (n *node) recover() {
	n.Helper()
	n.remote.down.Store(false)
	n.remote.hung.Store(false)
	time.Sleep(2 * leftAlone)
	check.That(n, !n.backend.Down(), "two seconds after the store came back: got it down, want it asked again")
}

func policies(p Policy) func(string) ZoneOptions {
	return func(string) ZoneOptions { return ZoneOptions{Policy: p} }
}

// hourly is a charge to a bucket that hardly leaks.
func hourly(capacity, cost float64) leakybucket.Charge {
	return leakybucket.Charge{Zone: "z", Key: "someone", Limit: leakybucket.Limit{Capacity: capacity, Leak: 1.0 / 3600}, Cost: cost, Debt: capacity}
}

// near reports whether two amounts are the same but for what an hourly bucket
// leaks in a few minutes.
func near(got, want float64) bool { return got > want-0.2 && got < want+0.2 }
