package engine_test

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
)

// A request that would have been refused would hold no slot either.
func TestAShadowThatOverflowsHoldsNoSlot(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := servertest.NewWaitZone(t, "limit 2 1/h\ncost 2 {\npath /dear\n}\nin_flight 2\nshadow", time.Second)
		for _, target := range []string{"/", "/dear", "/"} {
			s.Visit("203.0.113.7", target)
		}
		servertest.Sleep(time.Minute)
		servertest.WantCounts(t, "waits", map[string]float64{"admitted": 2, "shadow_refused capacity": 1})
		servertest.WantEmpty(t, "waits")
	})
}

// The store would not be asked about a key that is known to be blocked, and its
// requests would not be served.
func TestAShadowThatIsKnownToBeBlockedHoldsNoSlotAndCountsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servertest.RunShared(t, "", "zone z {\nlimit 1 1/h\nblock 1h\nin_flight 5\nshadow\n}")
		c := s.From(servertest.Someone)
		c.WantStatuses("/", map[int]int{200: 6})
		if got := s.Counts(t)["z"]; got["admitted"] != 1 || got["shadow_refused capacity"] != 1 || got["shadow_refused blocked"] != 4 || got["shadow_refused in_flight"] != 0 {
			t.Errorf("got %v, want 1 admitted, 1 refused for its capacity and 4 blocked", got)
		}
	})
}

// Shadow zones see the requests when the enforced zones admit them, as they would
// if they were enforced.
func TestAShadowTakesItsSlotsAfterTheEnforcedWait(t *testing.T) {
	for _, test := range []struct {
		name, zones string
		takes       time.Duration
		want        map[string]float64
	}{
		{"the delay of another zone", "zone queue {\nlimit 6 1/s\ndelay\n}\nzone watched {\nin_flight 1\nSHADOW\n}", 500 * time.Millisecond, map[string]float64{"admitted": 4}},
		{"two slots", "zone queue {\nlimit 6 1/s\ndelay\n}\nzone watched {\nin_flight 2\nSHADOW\n}", 1500 * time.Millisecond, map[string]float64{"admitted": 4}},
		{"its own delay", "zone watched {\nlimit 6 1/s\ndelay\nin_flight 1\nSHADOW\n}", 500 * time.Millisecond, map[string]float64{"admitted": 1, "delayed": 3}},
	} {
		for _, shadow := range []string{"", "shadow"} {
			servertest.InBubble(t, func(t *testing.T) {
				s := servertest.NewWaitSite(t, "throttle {\n"+strings.ReplaceAll(test.zones, "SHADOW", shadow)+"\n}", test.takes)
				s.Visits(4, servertest.Office, "/")
				servertest.Sleep(time.Minute)
				want := make(map[string]float64)
				for name, n := range test.want {
					if shadow != "" && name != "admitted" {
						name = "shadow_" + name
					}
					want[name] = n
				}
				servertest.WantCounts(t, "watched", want)
				servertest.WantEmpty(t, "watched")
			})
		}
	}
}

// The response is long over when the simulation finds that enforcement would have
// refused the request.
func TestALateRefusalInShadowGivesItsChargeBackOnce(t *testing.T) {
	for _, test := range []struct {
		settle string
		cost   string // that the upstream tells
		sum    float64
	}{
		{"", "", -1},
		{"settle header X-Cost", "3", -1},  // two more, and three back
		{"settle header X-Cost", "0", -1},  // one back, and no more
		{"settle header X-Cost", "1", -1},  // nothing, and one back
		{"settle header X-Cost", "no", -1}, // stays reserved until it is given back
	} {
		servertest.InBubble(t, func(t *testing.T) {
			s := servertest.NewWaitZone(t, "limit 100 1/s\ndelay\nin_flight 1\nshadow\n"+test.settle, 0)
			s.Serve = func(w http.ResponseWriter, r *http.Request) error {
				if r.URL.Path == "/long" {
					w.Header().Set("X-Cost", "1")
					<-time.After(10 * time.Second)
					return nil
				}
				w.Header().Set("X-Cost", test.cost)
				return nil
			}
			s.Visit(servertest.Office, "/long")
			v := s.Visit(servertest.Office, "/")
			if !v.Ended || v.Code != http.StatusOK {
				t.Fatalf("got %v, over %v, want it served at once", v.Code, v.Ended)
			}
			servertest.Sleep(time.Minute)
			servertest.WantCounts(t, "waits", map[string]float64{"admitted": 1, "shadow_refused in_flight": 1})
			n, sum := s.Store.Sum()
			if test.settle == "" && n != 1 || n > 2 || sum != test.sum {
				t.Errorf("%s %s: got %d corrections of %v in all, want %v", test.settle, test.cost, n, sum, test.sum)
			}
			if got := s.Fullness("waits", servertest.Office, 100, 1, true); got != 0 {
				t.Errorf("%s %s: got level %v, want 0", test.settle, test.cost, got)
			}
			servertest.WantEmpty(t, "waits")
		})
	}
}

// Whatever the store does first, nothing is left of the request.
func TestARefusalInShadowWhileTheStoreSettlesLeavesNothingCharged(t *testing.T) {
	const slow = 15 * time.Second
	for _, slowly := range [][]time.Duration{{slow}, {slow, slow}, nil} {
		for _, cost := range []string{"0", "1", "30"} {
			servertest.InBubble(t, func(t *testing.T) {
				s := servertest.NewWaitZone(t, "limit 100 6/m\nkey text all\ndelay\nin_flight 1\nshadow\nsettle header X-Cost", 0)
				s.Serve = func(w http.ResponseWriter, r *http.Request) error {
					w.Header().Set("X-Cost", r.URL.Path[1:])
					if r.URL.Path == "/1" && r.RemoteAddr == servertest.Office+":1" {
						<-time.After(time.Minute)
					}
					return nil
				}
				s.Visit(servertest.Office, "/1")
				s.Store.Slowly = slowly
				s.Visit(servertest.Visitor, "/"+cost) // for which there is no slot ten seconds later
				servertest.Sleep(35 * time.Second)
				servertest.WantCounts(t, "waits", map[string]float64{"admitted": 1, "shadow_refused in_flight": 1})
				if got := s.Fullness("waits", "all", 100, 0.1, true); got > 1 {
					t.Errorf("settling takes %v, cost %s: got level %v, want what has leaked by now at most", slowly, cost, got)
				}
				if _, sum := s.Store.Sum(); sum != -1 {
					t.Errorf("settling takes %v, cost %s: got corrections of %v in all, want -1", slowly, cost, sum)
				}
				servertest.Sleep(time.Minute)
				servertest.WantEmpty(t, "waits")
			})
		}
	}
}
