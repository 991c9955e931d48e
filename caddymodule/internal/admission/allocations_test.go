//go:build !race

// The race detector empties pools at random.

package admission

import (
	"testing"
	"time"
)

const raceDetector = false

func TestAFreeSlotCostsOneAllocation(t *testing.T) {
	gate, zone := new(Gate), new(Zone)
	ctx, entries := t.Context(), []Entry{{Zone: zone, Key: "203.0.113.7", InFlight: 5}}
	if got := testing.AllocsPerRun(1000, func() {
		p, _ := gate.Admit(ctx, time.Time{}, entries, nil)
		p.Release()
	}); got > 1 {
		t.Errorf("got %v allocations, want 1", got)
	}
	if got := testing.AllocsPerRun(1000, func() {
		s := Simulate(time.Time{}, []Entry{entries[0]}, func(Result) {})
		s.Begin()
		s.Release()
	}); got > 1 {
		t.Errorf("got %v allocations of a simulation, want 1", got)
	}
}
