package caddymodule

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// newErrorSite is a site whose upstream fails, and works on an error page for a second.
func newErrorSite(t testing.TB, directives, routed string) *settleSite {
	t.Helper()
	s := newSettleSite(t, directives+"\nsettle_upstream\n}\nhandle_errors {\nroute {\n"+routed+"\nsettle_upstream\n}")
	s.exit = make(chan struct{})
	s.app.engine.Gate.Exiting = s.exit
	s.serve = func(w http.ResponseWriter, r *http.Request) error {
		if r.Context().Value(caddyhttp.ErrorCtxKey) == nil {
			return caddyhttp.Error(http.StatusNotFound, errors.New("missing"))
		}
		time.Sleep(time.Second)
		switch r.URL.Path {
		case "/fails":
			return errors.New("again")
		case "/panics":
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(http.StatusNotFound)
		return nil
	}
	return s
}

// TestARequestThatErrsHoldsItsSlotUntilItsErrorPageIsThere, and no longer, whatever becomes
// of that.
func TestARequestThatErrsHoldsItsSlotUntilItsErrorPageIsThere(t *testing.T) {
	const one, two = "throttle {\nzone slot {\nkey host\nin_flight 1\n}\n}", "throttle {\nzone outer {\nkey host\nin_flight 1\n}\n}\n"
	for _, test := range []struct{ name, directives, routed string }{
		{"plain", one, ""},
		{"routed", one, one},
		{"share", "throttle {\nzone slot {\nkey host\nin_flight 1 {\n\tshare client_ip\n}\n}\n}", ""},
		{"share, routed", "throttle {\nzone slot {\nkey host\nin_flight 1 {\n\tshare client_ip\n}\n}\n}", "throttle {\nzone slot {\nkey host\nin_flight 1 {\n\tshare client_ip\n}\n}\n}"},
		{"nested", two + one, one},
		{"only there", "", one},
	} {
		for _, path := range []string{"/", "/fails", "/panics"} {
			inSettleBubble(t, func(t *testing.T) {
				s := newErrorSite(t, test.directives, test.routed)
				v := s.visit(visitor, path)
				wantServed(t, "slot", 1)
				pass(900 * time.Millisecond)
				wantServed(t, "slot", 1)
				if path == "/" && test.name != "only there" {
					if other := s.visit(office, path); other.reached {
						t.Errorf("%s: got another one at the upstream, want it refused or waiting", test.name)
					} else {
						other.leave()
					}
				}
				pass(time.Minute)
				if !v.ended || path == "/" && v.Code != http.StatusNotFound {
					t.Errorf("%s %s: got ended %v with %d, want 404", test.name, path, v.ended, v.Code)
				}
				emptyRooms(t, "slot", "outer")
			})
		}
	}
}

// TestAClientThatLeavesItsErrorPageLeavesNoSlot.
func TestAClientThatLeavesItsErrorPageLeavesNoSlot(t *testing.T) {
	for _, routed := range []string{"", "throttle {\nzone slot {\nkey host\nin_flight 1 {\n\tshare client_ip\n}\n}\n}"} {
		inSettleBubble(t, func(t *testing.T) {
			s := newErrorSite(t, "throttle {\nzone slot {\nkey host\nin_flight 1 {\n\tshare client_ip\n}\n}\n}", routed)
			v := s.visit(visitor, "/")
			wantServed(t, "slot", 1)
			v.leave()
			pass(time.Minute)
			emptyRooms(t, "slot")
		})
	}
}

// TestAnErrorRouteWithoutAFreeSlotAnswersTheErrorsStatus, at once and with our own page.
func TestAnErrorRouteWithoutAFreeSlotAnswersTheErrorsStatus(t *testing.T) {
	inSettleBubble(t, func(t *testing.T) {
		const zone = "throttle {\nzone slot {\nkey host\nlimit 100 1/d\nin_flight 1\n}\n}"
		s := newErrorSite(t, "", zone)
		first, second := s.visit(visitor, "/"), s.visit(office, "/")
		if second.Code != http.StatusNotFound || !second.ended || second.Header().Get("Retry-After") != "" || !strings.Contains(second.Body.String(), "Sorry") {
			t.Errorf("got %d %q, ended %v, want the built-in page with 404", second.Code, second.Body, second.ended)
		}
		pass(time.Minute)
		if first.Code != http.StatusNotFound || first.Body.Len() > 0 {
			t.Errorf("got %d %q, want the upstream's page", first.Code, first.Body)
		}
		wantCounts(t, "slot", map[string]float64{})
		if level := s.fullness("slot", "example.com", 100, 1./86400, false); level != 0 {
			t.Errorf("got level %v, want nothing charged", level)
		}
		emptyRooms(t, "slot")
	})
}

// TestAnErrorRouteTakesNoSlotInShadow, and the simulation keeps its own.
func TestAnErrorRouteTakesNoSlotInShadow(t *testing.T) {
	inSettleBubble(t, func(t *testing.T) {
		const zone = "throttle {\nzone slot {\nkey host\nin_flight 1\nshadow\n}\n}"
		s := newErrorSite(t, zone, zone)
		visits := s.visits(3, visitor, "/")
		wantServed(t, "slot", 0)
		pass(time.Minute)
		for _, v := range visits {
			if v.Code != http.StatusNotFound {
				t.Errorf("got %d, want 404", v.Code)
			}
		}
		wantCounts(t, "slot", map[string]float64{"admitted": 1, "shadow_refused in_flight": 2})
		emptyRooms(t, "slot")
	})
}
