package engine_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
)

// settlePanics is an upstream that says its cost and then panics, as
// reverse_proxy does when its upstream breaks off.
func settlePanics(value any) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		servertest.Says(200, "X-Cost", "3")(w, r)
		panic(value)
	}
}

func TestAPanicSettlesOnceAndGoesOnUntouched(t *testing.T) {
	broken := errors.New("broken")
	for _, value := range []any{http.ErrAbortHandler, broken, "a text", &http.Request{}} {
		s := servertest.NewFuncZone(t, "cost 1\nsettle header X-Cost")
		s.Serve = settlePanics(value)
		if _, panicked := s.Get("/"); panicked != value {
			t.Errorf("got the panic %v, want %v", panicked, value)
		}
		if n, diff := s.Store.Sum(); n != 1 || diff != 2 {
			t.Errorf("got %d settlements of %v together, want one of 2", n, diff)
		}
		s.WantLevel("settled", 3)
	}
}

func TestAPanicBeforeThereAreHeadersTellsNothing(t *testing.T) {
	for _, test := range []struct {
		options string
		unknown float64
	}{
		{"settle header X-Cost", 1},
		{"settle bytes 1", 1},
		{"settle status 2xx 5xx 7", 1},
		{"settle seconds", 0}, // it ended with the panic
	} {
		t.Run(test.options, func(t *testing.T) {
			s := servertest.NewFuncZone(t, "cost 2\n"+test.options)
			s.Serve = func(w http.ResponseWriter, _ *http.Request) error {
				w.Header().Set("X-Cost", "0")
				panic(http.ErrAbortHandler)
			}
			s.Get("/")
			s.WantLevel("settled", 2)
			if got := s.Unsettled("settled"); got != test.unknown {
				t.Errorf("got %v unsettled, want %v", got, test.unknown)
			}
		})
	}
}

// TestAThousandOfEachSettleOnceEach: all are in flight together, or as many as
// there are processors.
func TestAThousandOfEachSettleOnceEach(t *testing.T) {
	const each = 1000
	s := servertest.NewFuncSite(t, `throttle {
		zone settled {
			limit 50000 1/h
			cost 2
			settle header X-Cost
		}
	}
	settle_upstream`)
	serve := map[string]func(http.ResponseWriter, *http.Request) error{
		"/panics": settlePanics(http.ErrAbortHandler),    // 2 up to 3
		"/ends":   servertest.Says(200, "X-Cost", "0.5"), // 2 down to 0.5
	}
	s.Serve = func(w http.ResponseWriter, r *http.Request) error {
		leave, leaving := r.Context().Value(settleLeave{}).(context.CancelFunc)
		if leaving {
			leave()
		}
		return serve[r.URL.Path](w, r)
	}
	var requests sync.WaitGroup
	for range each {
		requests.Go(func() { s.Get("/panics") })
		requests.Go(func() { s.Get("/ends") })
		for _, path := range []string{"/panics", "/ends"} { // the latter stays at 2
			requests.Go(func() {
				defer func() { _ = recover() }()
				ctx, leave := context.WithCancel(t.Context())
				ctx = context.WithValue(ctx, settleLeave{}, leave)
				s.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "GET", "http://example.com"+path, nil))
			})
		}
	}
	requests.Wait()
	n, diff := s.Store.Sum()
	if wantDiff := each * (1 - 1.5 + 1 + 0.0); n != 3*each || diff != wantDiff {
		t.Errorf("got %d settlements of %v together, want %d of %v", n, diff, 3*each, wantDiff)
	}
	if got, want := s.Level("settled", false), each*(3+0.5+3+2.0); math.Abs(got-want) > 0.1 {
		t.Errorf("got level %v, want %v", got, want)
	}
}

// settleLeave is the context key under which an upstream in a test finds the
// function that makes the client leave.
type settleLeave struct{}

func TestAShadowZoneSettlesInItsOwnBuckets(t *testing.T) {
	s := servertest.NewFuncSite(t, `throttle {
		zone enforced {
			limit 1000 1/d
			settle header X-Cost
		}
		zone watched {
			limit 5 1/d
			settle header X-Cost debt 1
			shadow
		}
	}
	settle_upstream`)
	s.Serve = servertest.Says(200, "X-Cost", "4")
	for range 4 {
		if w, _ := s.Get("/"); w.Code != http.StatusOK {
			t.Fatalf("got %v, want 200", w.Code)
		}
	}
	s.WantLevel("enforced", 16)
	s.WantLevel("watched", 0)
	// 4, then 5 and 3 more up to the debt. Further requests would be refused.
	if got := s.Level("watched", true); math.Abs(got-6) > 0.01 {
		t.Errorf("got level %v in shadow, want 6", got)
	}
	if n, _ := s.Store.Sum(); n != 4+2 {
		t.Errorf("got %d settlements, want 4 enforced and 2 in shadow", n)
	}
}

func TestARefusedRequestSettlesNothing(t *testing.T) {
	s := servertest.NewFuncSite(t, `throttle {
		zone small {
			limit 1 1/d
		}
		zone settled {
			limit 1000 1/d
			settle status 2xx 4xx 5
		}
		zone watched {
			limit 1000 1/d
			settle status 2xx 4xx 5
			shadow
		}
	}
	settle_upstream`)
	s.Serve = servertest.Says(200)
	for i, want := range []int{200, 429, 429} {
		if w, _ := s.Get("/"); w.Code != want {
			t.Errorf("request %d: got %v, want %v", i+1, w.Code, want)
		}
	}
	if n, _ := s.Store.Sum(); n != 2 {
		t.Errorf("got %d settlements, want 2, of the request that passed", n)
	}
	s.WantLevel("settled", 5)
	if got := s.Unsettled("settled"); got != 0 {
		t.Errorf("got %v unsettled, want none", got)
	}
}

func TestHandlersWithinEachOtherSettleEachTheirOwn(t *testing.T) {
	zone := func(name, options string) string {
		return "throttle {\nzone " + name + " {\nlimit 1000 1/d\n" + options + "\n}\n}\n"
	}
	s := servertest.NewFuncSite(t, zone("outer", "settle header X-Cost")+
		zone("middle", "exempt {\npath /x\n}\nsettle header X-Other")+
		zone("inner", "settle header X-Cost")+
		zone("outer", "settle header X-Cost")+
		zone("seconds", "settle seconds")+
		zone("status", "settle status 200 7 after")+"settle_upstream")
	var seen *limit.Verdicts
	s.Serve = func(w http.ResponseWriter, r *http.Request) error {
		seen = limit.VerdictsOf(r.Context())
		return servertest.Says(200, "X-Cost", "3", "X-Other", "4")(w, r)
	}
	w, _ := s.Get("/x")
	for zone, want := range map[string]float64{"outer": 3, "middle": 0, "inner": 3, "seconds": 0, "status": 7} {
		s.WantLevel(zone, want)
		if got := s.Unsettled(zone); got != 0 {
			t.Errorf("zone %s: got %v unsettled, want none", zone, got)
		}
	}
	for _, name := range []string{"X-Cost", "X-Other"} {
		if got := w.Header()[name]; got != nil {
			t.Errorf("the client sees %s %q, want none", name, got)
		}
	}
	zones := fmt.Sprint(servertest.Logged(seen)["zones"])
	if got := strings.Count(zones, "settled:"); got != 4 {
		t.Errorf("got %d settled of 4 in %s", got, zones)
	}
}

func TestAStoreThatIsDownLetsPassAndHidesWhatTheUpstreamTells(t *testing.T) {
	for _, take := range []int{1, 2} { // that without the body, and that with it
		s := servertest.NewFuncSite(t, "throttle {\nzone plain {\nlimit 1000 1/d\n}\nzone settled {\nlimit 1000 1/d\ncost body_items\nsettle header X-Cost\n}\n}\nsettle_upstream")
		s.Store.Failing = func(n int) bool { return n == take }
		s.Serve = servertest.Says(200, "X-Cost", "3")
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest("POST", "http://example.com/", strings.NewReader("[1,2]")))
		if got := w.Header()["X-Cost"]; w.Code != http.StatusOK || got != nil {
			t.Errorf("take %d fails: got %v and X-Cost %q, want 200 and none", take, w.Code, got)
		}
		if n, _ := s.Store.Sum(); n != 2-take {
			t.Errorf("take %d fails: got %d settlements, want one if the zone that settles was asked", take, n)
		}
	}
}
