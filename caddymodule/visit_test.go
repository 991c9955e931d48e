package caddymodule

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admission"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/engine"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/stores"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// A visit is a request that runs while the test goes on.
type visit struct {
	*httptest.ResponseRecorder
	leave    context.CancelFunc
	at       time.Time
	reached  bool              // the upstream
	waited   time.Duration     // until it reached the upstream, or was answered
	result   *decision.Verdict // that the upstream has seen
	panicked any
	ended    bool
}

type visitKey struct{}

// news holds the results of visits until the test looks at them.
var news = make(chan func(), 1<<14)

// quiet waits until all goroutines are idle, and records the results of visits.
func quiet() {
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

// newWaitSite is the site of some throttle handlers. Its upstream takes as long
// as takes returns, or until the client leaves.
func newWaitSite(t testing.TB, directives string, takes time.Duration) *settleSite {
	t.Helper()
	s := newSettleSite(t, directives+"\nsettle_upstream")
	s.exit = make(chan struct{}) // virtual time stands still for what waits on a channel of the real one
	s.app.engine.Gate.Exiting = s.exit
	s.serve = func(w http.ResponseWriter, r *http.Request) error {
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

// newWaitZone is the site of one zone.
func newWaitZone(t testing.TB, options string, takes time.Duration) *settleSite {
	t.Helper()
	return newWaitSite(t, "throttle {\nzone waits {\n"+options+"\n}\n}", takes)
}

// visit sends a request, and returns when the request waits for something or is
// over.
func (s *settleSite) visit(addr, target string, headers ...string) *visit {
	s.Helper()
	r := httptest.NewRequest(http.MethodGet, "http://example.com"+target, nil)
	r.RemoteAddr = addr + ":1"
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	return s.come(r)
}

// come is visit for any request.
func (s *settleSite) come(r *http.Request) *visit {
	s.Helper()
	ctx, leave := context.WithCancel(context.Background())
	v := &visit{ResponseRecorder: httptest.NewRecorder(), leave: leave, at: time.Now()}
	go s.follow(v, r.WithContext(context.WithValue(ctx, visitKey{}, v)))
	quiet()
	return v
}

func (s *settleSite) follow(v *visit, r *http.Request) {
	defer func() {
		panicked, now := recover(), time.Now()
		news <- func() {
			v.ended, v.panicked = true, panicked
			if !v.reached {
				v.waited = now.Sub(v.at)
			}
		}
		v.leave()
		r.Body.Close() // as a server does
	}()
	s.ServeHTTP(v.ResponseRecorder, r)
}

// reach records that a request has reached the upstream.
func reach(r *http.Request) {
	if v, ok := r.Context().Value(visitKey{}).(*visit); ok {
		res, now := decision.VerdictOf(r), time.Now()
		news <- func() { v.reached, v.result, v.waited = true, res, now.Sub(v.at) }
	}
}

// visits sends n requests in one instant.
func (s *settleSite) visits(n int, addr, target string) (all []*visit) {
	s.Helper()
	for range n {
		all = append(all, s.visit(addr, target))
	}
	return all
}

// pass sleeps.
func pass(d time.Duration) {
	time.Sleep(d)
	quiet()
}

// fullness returns how full a bucket is.
func (s *settleSite) fullness(zone, key string, capacity, leak float64, shadow bool) float64 {
	s.Helper()
	charges := []leakybucket.Charge{{Zone: zone, Key: key, Shadow: leakybucket.ShadowIf(shadow), Probe: true, Limit: leakybucket.Limit{Capacity: capacity, Leak: leak}}}
	decisions := make([]leakybucket.Decision, 1)
	if err := s.store.Store.Take(context.Background(), charges, decisions); err != nil {
		s.Fatal(err)
	}
	return decisions[0].Level
}

// counted returns the values of one of our metrics for a zone by its other
// labels, without zeros.
func counted(t testing.TB, collector prometheus.Collector, zone string) map[string]float64 {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counts := make(map[string]float64)
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			var labels []string
			found := false
			for _, label := range metric.GetLabel() {
				if label.GetName() == "zone" {
					found = label.GetValue() == zone
				} else if label.GetValue() != "" {
					labels = append(labels, label.GetValue())
				}
			}
			if n := metric.GetCounter().GetValue() + metric.GetGauge().GetValue(); found && n != 0 {
				name := strings.TrimSpace(strings.Join(labels, " "))
				if name == "" {
					name = strings.TrimPrefix(family.GetName(), "caddy_throttle_")
				}
				counts[name] = n
			}
		}
	}
	return counts
}

// wantCounts checks how often a zone made each decision, as "decision reason".
func wantCounts(t testing.TB, zone string, want map[string]float64) {
	t.Helper()
	if got := counted(t, telemetry.Requests, zone); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("zone %s: got %v, want %v", zone, got, want)
	}
}

// emptyRooms checks that no state of finished requests is kept.
func emptyRooms(t testing.TB, zones ...string) {
	t.Helper()
	for _, name := range zones {
		z := engine.JoinState(name)
		for _, admitted := range []*admission.Zone{&z.Enforced, &z.Simulated} {
			if waiting, served := admitted.Counts(); waiting != 0 || served != 0 {
				t.Errorf("zone %s: got %d waiting and %d served, want none", name, waiting, served)
			}
		}
		if err := stores.Leave(engine.StateKey(name)); err != nil {
			t.Fatal(err)
		}
	}
}

// A trace is reproducible traffic: which client comes, and how much later.
type trace struct {
	addrs []string
	rest  func() time.Duration
}

// randomTrace is traffic of bursts and pauses by some clients.
func randomTrace(seed uint64, clients int) trace {
	random := rand.New(rand.NewPCG(seed, 1))
	var addrs []string
	for i := range clients {
		addrs = append(addrs, fmt.Sprintf("203.0.113.%d", i+1))
	}
	return trace{addrs: addrs, rest: func() time.Duration {
		switch random.IntN(20) {
		case 0:
			return time.Duration(random.IntN(20_000_000)) * time.Microsecond
		case 1, 2, 3, 4:
			return time.Duration(random.IntN(700_000)) * time.Microsecond
		}
		return time.Duration(random.IntN(3000)) * time.Microsecond
	}}
}
