//go:build !race

package gate

import (
	"testing"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/inflight/fairqueue"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// A request brings its memory, but for that of its key.
func TestAFreeSlotCostsOneAllocation(t *testing.T) {
	for _, share := range []bool{false, true} {
		g, l, ctx := new(Gate), Limits{Slots: 5, Share: share}, t.Context()
		s, ask := new(Slot), Slot{Key: "203.0.113.7"}
		if share {
			ask = turn(1, fairqueue.Member, "203.0.113.7")
		}
		got := testing.AllocsPerRun(1000, func() {
			*s = ask
			g.Enter(ctx, nil, l, s)
			s.Release(true)
		})
		check.That(t, got <= 1, "share %v: got %v allocations, want one", share, got)
	}
}
