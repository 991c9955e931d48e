//go:build !race

// The race detector empties pools at random.

package gate

import "testing"

const raceDetector = false

func TestAFreeSlotCostsOneAllocation(t *testing.T) {
	for _, share := range []bool{false, true} {
		g, l, ctx := new(Gate), Limits{Slots: 5, Share: share}, t.Context()
		if got := testing.AllocsPerRun(1000, func() {
			r := Request{Key: "203.0.113.7"}
			r.Keys[0] = "203.0.113.7"
			s, _ := g.Enter(ctx, nil, l, &r)
			s.Release(true)
		}); got > 1 {
			t.Errorf("share %v: got %v allocations, want 1", share, got)
		}
	}
}
