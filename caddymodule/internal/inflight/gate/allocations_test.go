//go:build !race

// The race detector empties pools at random.

package gate

import (
	"testing"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/inflight/fairqueue"
)

const raceDetector = false

// A request brings its memory.
func TestAFreeSlotCostsNoAllocation(t *testing.T) {
	for _, share := range []bool{false, true} {
		g, l, ctx := new(Gate), Limits{Slots: 5, Share: share}, t.Context()
		s, claim := new(Slot), &fairqueue.Claim{Keys: [2]string{"203.0.113.7"}}
		if got := testing.AllocsPerRun(1000, func() {
			*s = Slot{Request: Request{Key: "203.0.113.7", Claim: claim}}
			g.Enter(ctx, nil, l, s)
			s.Release(true)
		}); got > 0 {
			t.Errorf("share %v: got %v allocations, want none", share, got)
		}
	}
}
