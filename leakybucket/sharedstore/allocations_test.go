//go:build !race

package sharedstore

import (
	"context"
	"testing"
	"time"
)

// The race detector allocates too, so this test does without it.
func TestAllocations(t *testing.T) {
	parent := t.Context()
	most := testing.AllocsPerRun(1000, func() {
		_, cancel := context.WithTimeout(context.WithoutCancel(parent), time.Minute)
		cancel()
	})
	s, charges, decisions := benchmarkStore(t)
	s.timeout = time.Minute
	if got := testing.AllocsPerRun(1000, func() { _ = s.Take(parent, charges, decisions) }); got > most+1 {
		t.Errorf("a store that answers: got %v allocations, want the %v of a context, and one of the breaker", got, most)
	}
}
