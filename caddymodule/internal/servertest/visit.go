package servertest

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/engine"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/response"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/stores"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// WantWaits checks how long requests wait, in seconds. A refused request is -1.
func WantWaits(t *testing.T, visits []*Visit, want ...float64) {
	t.Helper()
	var got []float64
	for _, v := range visits {
		switch {
		case !v.Ended:
			got = append(got, -2)
		case v.Code == http.StatusTooManyRequests:
			got = append(got, -1)
		default:
			got = append(got, v.Waited.Round(time.Millisecond).Seconds())
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("got waits of %v seconds, want %v", got, want)
	}
}

// WantGone checks that a client that left was not served.
func WantGone(t *testing.T, v *Visit) {
	t.Helper()
	if !v.Ended || v.Reached || v.Code != response.StatusClientLeft {
		t.Errorf("got %v, at the upstream %v, over %v, want 499 and no upstream call", v.Code, v.Reached, v.Ended)
	}
}

// A Visit is a request that runs while the test goes on.
type Visit struct {
	*httptest.ResponseRecorder
	Leave    context.CancelFunc
	at       time.Time
	Reached  bool            // the upstream
	Waited   time.Duration   // until it reached the upstream, or was answered
	Verdict  *limit.Verdicts // that the upstream has seen
	Panicked any
	Ended    bool
}

type VisitKey struct{}

// news holds the results of visits until the test looks at them.
var news = make(chan func(), 1<<14)

// Quiet waits until all goroutines are idle, and records the results of visits.
func Quiet() {
	synctest.Wait()
	for {
		select {
		case note := <-news:
			note()
		default:
			return
		}
	}
}

// NewWaitSite is the site of some throttle handlers. Its upstream takes as long
// as takes returns, or until the client leaves.
func NewWaitSite(t testing.TB, directives string, takes time.Duration) *FuncSite {
	t.Helper()
	s := NewFuncSite(t, directives+"\nsettle_upstream")
	exiting, exit := context.WithCancel(context.Background()) // virtual time stands still for what waits on a channel of the real one
	s.Exit, s.Engine().Exiting = exit, exiting.Done()
	for _, l := range s.Engine().InFlight {
		l.Exiting = exiting
	}
	s.Serve = func(_ http.ResponseWriter, r *http.Request) error {
		if takes > 0 {
			select {
			case <-time.After(takes):
			case <-r.Context().Done():
			}
		}
		return nil
	}
	return s
}

// NewWaitZone is the site of one zone.
func NewWaitZone(t testing.TB, options string, takes time.Duration) *FuncSite {
	t.Helper()
	return NewWaitSite(t, "throttle {\nzone waits {\n"+options+"\n}\n}", takes)
}

// Visit sends a request, and returns when the request waits for something or is
// over.
func (s *FuncSite) Visit(addr, target string, headers ...string) *Visit {
	s.Helper()
	r := httptest.NewRequest(http.MethodGet, "http://example.com"+target, nil)
	r.RemoteAddr = addr + ":1"
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	return s.Come(r)
}

// Come is Visit for any request.
func (s *FuncSite) Come(r *http.Request) *Visit {
	s.Helper()
	ctx, leave := context.WithCancel(context.Background())
	v := &Visit{ResponseRecorder: httptest.NewRecorder(), Leave: leave, at: time.Now()}
	go s.follow(v, r.WithContext(context.WithValue(ctx, VisitKey{}, v)))
	Quiet()
	return v
}

func (s *FuncSite) follow(v *Visit, r *http.Request) {
	defer func() {
		panicked, now := recover(), time.Now()
		news <- func() {
			v.Ended, v.Panicked = true, panicked
			if !v.Reached {
				v.Waited = now.Sub(v.at)
			}
		}
		v.Leave()
		r.Body.Close() // as a server does
	}()
	s.ServeHTTP(v.ResponseRecorder, r)
}

// reach records that a request has reached the upstream.
func reach(r *http.Request) {
	if v, ok := r.Context().Value(VisitKey{}).(*Visit); ok {
		res, now := limit.VerdictsOf(r.Context()), time.Now()
		news <- func() { v.Reached, v.Verdict, v.Waited = true, res, now.Sub(v.at) }
	}
}

// Visits sends n requests in one instant.
func (s *FuncSite) Visits(n int, addr, target string) (all []*Visit) {
	s.Helper()
	for range n {
		all = append(all, s.Visit(addr, target))
	}
	return all
}

// Sleep lets time pass, and records the results of visits.
func Sleep(d time.Duration) {
	time.Sleep(d)
	Quiet()
}

// Fullness returns how full a bucket is.
func (s *FuncSite) Fullness(zone, key string, capacity, leak float64, shadow bool) float64 {
	s.Helper()
	charges := []leakybucket.Charge{{Zone: zone, Key: key, Shadow: shadow, Probe: true, Limit: leakybucket.Limit{Capacity: capacity, Leak: leak}}}
	decisions := make([]leakybucket.Decision, 1)
	if err := s.Store.Store.Take(context.Background(), charges, decisions); err != nil {
		s.Fatal(err)
	}
	return decisions[0].Level
}

// WantEmpty checks that no state of finished requests is kept.
func WantEmpty(t testing.TB, zones ...string) {
	t.Helper()
	for _, name := range zones {
		if waiting := engine.JoinState(name).Waiting.Taken(); waiting != 0 {
			t.Errorf("zone %s: got %d waiting, want none", name, waiting)
		}
		if err := stores.Leave(engine.StateKey(name)); err != nil {
			t.Fatal(err)
		}
	}
}
