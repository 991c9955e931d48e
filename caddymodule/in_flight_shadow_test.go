package caddymodule

import (
	"testing"
	"testing/synctest"
	"time"
)

// Who would have been refused would hold no slot either.
func TestAShadowThatOverflowsHoldsNoSlot(t *testing.T) {
	inSettleBubble(t, func(t *testing.T) {
		s := newWaitZone(t, "capacity 2\nleak 1/h\ncost 2 {\npath /dear\n}\nin_flight 2\nshadow", time.Second)
		for _, target := range []string{"/", "/dear", "/"} {
			s.visit("203.0.113.7", target)
		}
		pass(time.Minute)
		wantCounts(t, "waits", map[string]float64{"admitted": 2, "shadow_refused capacity": 1})
		emptyRooms(t, "waits")
	})
}

// What is known to be blocked would not be asked, and not be served.
func TestAShadowThatIsKnownToBeBlockedHoldsNoSlotAndCountsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := runShared(t, "", "zone z {\ncapacity 1\nleak 1/h\nblock 1h\nin_flight 5\nshadow\n}")
		c := s.from(someone)
		c.wantStatuses("/", map[int]int{200: 6})
		if got := s.counts(t)["z"]; got["admitted"] != 1 || got["shadow_refused capacity"] != 1 || got["shadow_refused blocked"] != 4 || got["shadow_refused in_flight"] != 0 {
			t.Errorf("got %v, want 1 admitted, 1 refused for its capacity and 4 blocked", got)
		}
	})
}
