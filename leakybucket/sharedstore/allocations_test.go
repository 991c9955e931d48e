//go:build !race

package sharedstore

import (
	"context"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// The race detector allocates too, so this test does without it.
func TestAllocations(t *testing.T) {
	parent := t.Context()
	most := testing.AllocsPerRun(1000, func() {
		_, cancel := context.WithTimeout(context.WithoutCancel(parent), time.Minute)
		cancel()
	})
	b := NewBackend("instant", memstore.New(memstore.Options{}), memstore.New(memstore.Options{}))
	t.Cleanup(b.Close)
	b.Await(parent)
	limit := leakybucket.Limit{Capacity: 1e9, Leak: 1}
	charges := []leakybucket.Charge{{Zone: "a", Key: "192.0.2.1", Limit: limit, Cost: 1}, {Zone: "b", Key: "192.0.2.1", Limit: limit, Cost: 1}}
	s, decisions := b.With(Options{Nodes: 2, Timeout: time.Minute}), make([]leakybucket.Decision, 2)
	got := testing.AllocsPerRun(1000, func() { _ = s.Take(parent, charges, decisions) })
	check.That(t, got <= most+1, "a store that answers: got %v allocations, want the %v of a context, and one of the breaker", got, most)
}
