//go:build !race

package sharedstore

import (
	"context"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// The race detector allocates too, so this test does without it.
func TestATakeAllocatesNoMoreThanItsContext(t *testing.T) {
	parent := t.Context()
	most := testing.AllocsPerRun(1000, func() {
		_, cancel := context.WithTimeout(context.WithoutCancel(parent), time.Minute)
		cancel()
	})
	s, charges, decisions := benchmarkStore(t)
	s.timeout = time.Minute
	if got := testing.AllocsPerRun(1000, func() { _ = s.Take(parent, charges, decisions) }); got > most {
		t.Errorf("a store that answers: got %v allocations, want the %v of a context", got, most)
	}
	asked := make([]leakybucket.Charge, len(charges))
	s.backend.breakers.set(true)
	if got := testing.AllocsPerRun(1000, func() {
		copy(asked, charges)
		_ = s.Take(parent, asked, decisions)
	}); got > 0 {
		t.Errorf("a store that is down: got %v allocations, want none", got)
	}
}
