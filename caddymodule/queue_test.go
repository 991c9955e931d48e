package caddymodule

import (
	"math"
	"net/http"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/response"
)

// wantFullness allows for rounding.
func wantFullness(t *testing.T, s *settleSite, want float64) {
	t.Helper()
	if got := s.fullness("waits", office, 6, 1, false); math.Abs(got-want) > 1e-5 {
		t.Errorf("got level %v, want %v", got, want)
	}
}

// wantGone checks that a client that left was not served.
func wantGone(t *testing.T, v *visit) {
	t.Helper()
	if !v.ended || v.reached || v.Code != response.StatusClientLeft {
		t.Errorf("got %v, at the upstream %v, over %v, want 499 and no upstream call", v.Code, v.reached, v.ended)
	}
}

func TestTheLastInTheQueueGivesItsPlaceBackWhenItLeaves(t *testing.T) {
	inSettleBubble(t, func(t *testing.T) {
		s := newWaitZone(t, likeNginx, 0)
		visits := s.visits(3, office, "/")
		pass(500 * time.Millisecond)
		wantFullness(t, s, 2.5)
		visits[2].leave()
		pass(0)
		wantGone(t, visits[2])
		wantFullness(t, s, 1.5)
		next := s.visit(office, "/")
		pass(time.Minute)
		wantWaits(t, []*visit{visits[0], visits[1], next}, 0, 1, 1.5)
		emptyRooms(t, "waits")
	})
}

func TestThePlaceOfAClientThatLeavesEarlierStaysEmpty(t *testing.T) {
	inSettleBubble(t, func(t *testing.T) {
		s := newWaitZone(t, likeNginx, 0)
		visits := s.visits(4, office, "/")
		pass(500 * time.Millisecond)
		visits[1].leave()
		pass(0)
		wantGone(t, visits[1])
		wantFullness(t, s, 3.5)
		pass(time.Minute)
		wantWaits(t, []*visit{visits[0], visits[2], visits[3]}, 0, 2, 3)
		emptyRooms(t, "waits")
	})
}

// Both happen at the same instant, and either may be seen first.
func TestAClientThatLeavesWhenItsTurnComesIsNotServed(t *testing.T) {
	for range 50 {
		inSettleBubble(t, func(t *testing.T) {
			s := newWaitZone(t, likeNginx, 0)
			s.visit(office, "/")
			left := s.visit(office, "/")
			go func() {
				<-time.After(time.Second)
				left.leave()
			}()
			pass(time.Minute)
			if left.reached && left.waited < time.Second {
				t.Errorf("got to the upstream after %v, want a second or never", left.waited)
			}
			emptyRooms(t, "waits")
		})
	}
}

func TestTooManyThatWaitAreRefusedAndNotCharged(t *testing.T) {
	inSettleBubble(t, func(t *testing.T) {
		s := newWaitZone(t, likeNginx+" queue 2\nrefusal retry_after fit", 0)
		visits := s.visits(4, office, "/")
		wantFullness(t, s, 3)
		if v := visits[3]; v.Code != http.StatusTooManyRequests || v.Header().Get("Retry-After") != "3" {
			t.Errorf("got %v with Retry-After %q, want 429 with 3", v.Code, v.Header().Get("Retry-After"))
		}
		// max_waiting is per zone, not per key. Requests that need not wait do
		// not count.
		visits = append(visits, s.visit(visitor, "/"), s.visit(visitor, "/"))
		pass(time.Second)
		visits = append(visits, s.visit(office, "/"))
		pass(time.Minute)
		wantWaits(t, visits, 0, 1, 2, -1, 0, -1, 2)
		wantCounts(t, "waits", map[string]float64{"admitted": 2, "delayed": 3, "refused waiting": 2})
		emptyRooms(t, "waits")
	})
}

func TestARefusalForWaitingGivesBackTheChargesOfAllZones(t *testing.T) {
	inSettleBubble(t, func(t *testing.T) {
		s := newWaitSite(t, `throttle {
			zone beside {
				limit 100 1/d
			}
			zone watched {
				limit 100 1/d
				shadow
			}
			zone waits {
				`+likeNginx+` queue 1
			}
		}`, 0)
		s.visits(4, office, "/")
		wantFullness(t, s, 2)
		for _, shadow := range []bool{false, true} {
			zone := map[bool]string{false: "beside", true: "watched"}[shadow]
			if got := s.fullness(zone, office, 100, 1./86400, shadow); math.Abs(got-2) > 1e-3 {
				t.Errorf("zone %s: got level %v, want 2", zone, got)
			}
		}
		pass(time.Minute)
		wantCounts(t, "beside", map[string]float64{"admitted": 2})
		wantCounts(t, "watched", map[string]float64{"admitted": 2})
		wantCounts(t, "waits", map[string]float64{"admitted": 1, "delayed": 1, "refused waiting": 2})
	})
}

func TestAShadowForWhichTooManyWaitPoursNothing(t *testing.T) {
	inSettleBubble(t, func(t *testing.T) {
		s := newWaitZone(t, likeNginx+" queue 2\nshadow\nsettle header X-Cost", 0)
		for _, v := range s.visits(5, office, "/") {
			if !v.ended || !v.reached {
				t.Errorf("got over %v, at the upstream %v, want nobody to wait", v.ended, v.reached)
			}
		}
		if got := s.fullness("waits", office, 6, 1, true); got != 3 {
			t.Errorf("got level %v, want 3", got)
		}
		wantCounts(t, "waits", map[string]float64{"admitted": 1, "shadow_delayed": 2, "shadow_refused waiting": 2})
		pass(time.Minute)
		emptyRooms(t, "waits")
	})
}

func TestAtTheEndOfTheProcessAllWaitingClientsAreToldSo(t *testing.T) {
	for _, options := range []string{likeNginx, "in_flight 1 wait 1m"} {
		inSettleBubble(t, func(t *testing.T) {
			s := newWaitZone(t, options, 10*time.Second)
			first := s.visit(office, "/")
			waiting := s.visits(3, office, "/")
			pass(500 * time.Millisecond)
			close(s.exit)
			pass(0)
			for _, v := range waiting {
				if !v.ended || v.reached || v.Code != http.StatusServiceUnavailable {
					t.Errorf("got %v, over %v, want 503", v.Code, v.ended)
				}
			}
			wantCounts(t, "waits", map[string]float64{"admitted": 1, "refused waiting": 3})
			late := s.visit(visitor, "/") // need not wait
			pass(time.Minute)
			if first.Code != http.StatusOK || late.Code != http.StatusOK {
				t.Errorf("got %v and %v for who need not wait, want 200", first.Code, late.Code)
			}
			emptyRooms(t, "waits")
		})
	}
}

func TestWithoutASlotAfterTheWaitTheChargeIsGivenBack(t *testing.T) {
	inSettleBubble(t, func(t *testing.T) {
		s := newWaitZone(t, likeNginx+"\nin_flight 1", 1500*time.Millisecond)
		visits := s.visits(3, office, "/")
		pass(time.Second)
		// The second found the first in its slot. The third came after the
		// second, so the second's place stays empty.
		wantWaits(t, visits[:2], -2, -1)
		if v := visits[1]; v.Header().Get("Retry-After") != "1" || v.reached {
			t.Errorf("got Retry-After %q, want 1", v.Header().Get("Retry-After"))
		}
		wantFullness(t, s, 2)
		pass(time.Minute)
		wantWaits(t, visits, 0, -1, 2)
		wantCounts(t, "waits", map[string]float64{"admitted": 1, "delayed": 1, "refused in_flight": 1})
		emptyRooms(t, "waits")
	})
}

func TestTheLastWithoutASlotAfterTheWaitLeavesTheLevelAsItWas(t *testing.T) {
	inSettleBubble(t, func(t *testing.T) {
		s := newWaitZone(t, likeNginx+"\nin_flight 1", 10*time.Second)
		visits := s.visits(2, office, "/")
		pass(time.Second)
		wantWaits(t, visits, -2, -1)
		wantFullness(t, s, 0) // of the first nothing is left after a second
		pass(time.Minute)
	})
}
