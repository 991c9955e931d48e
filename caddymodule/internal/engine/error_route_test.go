package engine_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
)

// newErrorSite is a site whose upstream fails, and works on an error page for a second.
func newErrorSite(t testing.TB, directives, routed string) *servertest.FuncSite {
	t.Helper()
	s := servertest.NewFuncSite(t, directives+"\nsettle_upstream\n}\nhandle_errors {\nroute {\n"+routed+"\nsettle_upstream\n}")
	s.Exit = make(chan struct{})
	s.App.Engine().Gate.Exiting = s.Exit
	s.Serve = func(w http.ResponseWriter, r *http.Request) error {
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
			servertest.InBubble(t, func(t *testing.T) {
				s := newErrorSite(t, test.directives, test.routed)
				v := s.Visit(servertest.Visitor, path)
				wantServed(t, "slot", 1)
				servertest.Sleep(900 * time.Millisecond)
				wantServed(t, "slot", 1)
				if path == "/" && test.name != "only there" {
					if other := s.Visit(servertest.Office, path); other.Reached {
						t.Errorf("%s: got another one at the upstream, want it refused or waiting", test.name)
					} else {
						other.Leave()
					}
				}
				servertest.Sleep(time.Minute)
				if !v.Ended || path == "/" && v.Code != http.StatusNotFound {
					t.Errorf("%s %s: got ended %v with %d, want 404", test.name, path, v.Ended, v.Code)
				}
				servertest.WantEmpty(t, "slot", "outer")
			})
		}
	}
}

// TestAClientThatLeavesItsErrorPageLeavesNoSlot.
func TestAClientThatLeavesItsErrorPageLeavesNoSlot(t *testing.T) {
	for _, routed := range []string{"", "throttle {\nzone slot {\nkey host\nin_flight 1 {\n\tshare client_ip\n}\n}\n}"} {
		servertest.InBubble(t, func(t *testing.T) {
			s := newErrorSite(t, "throttle {\nzone slot {\nkey host\nin_flight 1 {\n\tshare client_ip\n}\n}\n}", routed)
			v := s.Visit(servertest.Visitor, "/")
			wantServed(t, "slot", 1)
			v.Leave()
			servertest.Sleep(time.Minute)
			servertest.WantEmpty(t, "slot")
		})
	}
}

// TestAnErrorRouteWithoutAFreeSlotAnswersTheErrorsStatus, at once and with our own page.
func TestAnErrorRouteWithoutAFreeSlotAnswersTheErrorsStatus(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		const zone = "throttle {\nzone slot {\nkey host\nlimit 100 1/d\nin_flight 1\n}\n}"
		s := newErrorSite(t, "", zone)
		first, second := s.Visit(servertest.Visitor, "/"), s.Visit(servertest.Office, "/")
		if second.Code != http.StatusNotFound || !second.Ended || second.Header().Get("Retry-After") != "" || !strings.Contains(second.Body.String(), "Sorry") {
			t.Errorf("got %d %q, ended %v, want the built-in page with 404", second.Code, second.Body, second.Ended)
		}
		servertest.Sleep(time.Minute)
		if first.Code != http.StatusNotFound || first.Body.Len() > 0 {
			t.Errorf("got %d %q, want the upstream's page", first.Code, first.Body)
		}
		servertest.WantCounts(t, "slot", map[string]float64{})
		if level := s.Fullness("slot", "example.com", 100, 1./86400, false); level != 0 {
			t.Errorf("got level %v, want nothing charged", level)
		}
		servertest.WantEmpty(t, "slot")
	})
}

// TestAnErrorRouteTakesNoSlotInShadow, and the simulation keeps its own.
func TestAnErrorRouteTakesNoSlotInShadow(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		const zone = "throttle {\nzone slot {\nkey host\nin_flight 1\nshadow\n}\n}"
		s := newErrorSite(t, zone, zone)
		visits := s.Visits(3, servertest.Visitor, "/")
		wantServed(t, "slot", 0)
		servertest.Sleep(time.Minute)
		for _, v := range visits {
			if v.Code != http.StatusNotFound {
				t.Errorf("got %d, want 404", v.Code)
			}
		}
		servertest.WantCounts(t, "slot", map[string]float64{"admitted": 1, "shadow_refused in_flight": 2})
		servertest.WantEmpty(t, "slot")
	})
}
