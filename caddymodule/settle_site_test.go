package caddymodule

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	_ "github.com/caddyserver/caddy/v2/modules/standard"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zapcore"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
)

// A settleSite is a site in this process: throttle before a handler function,
// with a store that records its calls.
type settleSite struct {
	testing.TB
	server *caddyhttp.Server
	app    *App
	store  *settleStore
	serve  func(http.ResponseWriter, *http.Request) error // what is throttled

	client string // the address that requests come from
	exit   chan struct{}
	stop   func()

	mu       sync.Mutex
	inFlight int // requests that are being served
	calm     sync.Cond
}

// newSettleSite runs a site until the test ends. In its directives, in the order
// in which they run, settle_upstream stands for serve.
func newSettleSite(t testing.TB, directives string) *settleSite {
	t.Helper()
	s := &settleSite{TB: t, store: newSettleStore(), client: "192.0.2.1"}
	s.calm.L = &s.mu
	latestSettleSite = s
	adapted, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(`{
		throttle {
			store settle_test
		}
	}
	http:// {
		route {
			`+directives+`
		}
	}`), map[string]any{"filename": "Caddyfile"})
	if err != nil {
		t.Fatal(err)
	}
	cfg := &caddy.Config{
		Logging: &caddy.Logging{
			Logs: map[string]*caddy.CustomLog{"default": {BaseLog: caddy.BaseLog{Level: "FATAL"}}},
		},
		StorageRaw: json.RawMessage(`{"module":"memory_test"}`),
	}
	base, err := caddy.ProvisionContext(cfg)
	if err != nil {
		t.Fatal(err)
	}
	// Only now do the apps belong to a context that can be ended.
	var site caddy.Config
	if err := json.Unmarshal(adapted, &site); err != nil {
		t.Fatal(err)
	}
	cfg.AppsRaw = site.AppsRaw
	ctx, stop := caddy.NewContext(base)
	s.stop = sync.OnceFunc(stop)
	t.Cleanup(func() { s.stop() })
	app, err := ctx.App("http")
	if err != nil {
		t.Fatal(err)
	}
	s.server = app.(*caddyhttp.App).Servers["srv0"]
	if app, err = ctx.App("throttle"); err != nil {
		t.Fatal(err)
	}
	s.app = app.(*App)
	if err := s.app.Start(); err != nil {
		t.Fatal(err)
	}
	s.stop = sync.OnceFunc(func() {
		_ = s.app.Stop()
		stop()
	})
	return s
}

// ServeHTTP implements http.Handler.
func (s *settleSite) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.count(+1)
	defer s.count(-1)
	s.server.ServeHTTP(w, r)
}

func (s *settleSite) count(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inFlight += n
	s.calm.Broadcast()
}

// wait waits until all requests that have come have been served.
func (s *settleSite) wait() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.inFlight > 0 {
		s.calm.Wait()
	}
}

// newSettleZone is the site of one zone that settles. Its buckets hold 1000 and
// hardly leak.
func newSettleZone(t testing.TB, options string) *settleSite {
	t.Helper()
	return newSettleSite(t, `throttle {
		zone settled {
			limit 1000 1/d
			`+options+`
		}
	}
	settle_upstream`)
}

// inSettleBubble runs a test in virtual time, beside a site in real time. What all sites of the
// process share is that one's, such as the samples of rates: taken every ten seconds of days
// of virtual time, they would be most of the test's work.
func inSettleBubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	beside := newSettleSite(t, "settle_upstream")
	defer beside.stop()
	synctest.Test(t, f)
}

// get sends a request, and returns the client's response and the value of the
// upstream's panic, if any.
func (s *settleSite) get(path string) (w *httptest.ResponseRecorder, panicked any) {
	w = httptest.NewRecorder()
	defer func() { panicked = recover() }()
	s.ServeHTTP(w, httptest.NewRequest("GET", "http://example.com"+path, nil))
	return w, nil
}

// level returns the level of the client's bucket after all requests have been
// served.
func (s *settleSite) level(zone string, shadow bool) float64 {
	s.Helper()
	s.wait()
	charge := leakybucket.Charge{
		Zone: zone, Key: s.client, Shadow: leakybucket.ShadowIf(shadow), Probe: true,
		Limit: leakybucket.Limit{Capacity: 1000, Leak: 1.0 / 86400},
	}
	decisions := make([]leakybucket.Decision, 1)
	if err := s.store.Store.Take(context.Background(), []leakybucket.Charge{charge}, decisions); err != nil {
		s.Fatal(err)
	}
	return decisions[0].Level
}

// wantLevel allows for the little that has leaked.
func (s *settleSite) wantLevel(zone string, want float64) {
	s.Helper()
	if got := s.level(zone, false); math.Abs(got-want) > 0.01 {
		s.Errorf("level of zone %s: got %v, want %v", zone, got, want)
	}
}

// unsettled returns how many charges of a zone were left as reserved.
func (s *settleSite) unsettled(zone string) float64 {
	s.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(telemetry.Unsettled)
	families, err := registry.Gather()
	if err != nil {
		s.Fatal(err)
	}
	for _, family := range families {
		for _, metric := range family.Metric {
			if metric.Label[0].GetValue() == zone {
				return metric.Counter.GetValue()
			}
		}
	}
	return 0
}

// settleLogged returns the fields of a request in the access log.
func settleLogged(p *decision.Verdict) map[string]any {
	enc := zapcore.NewMapObjectEncoder()
	if err := p.MarshalLogObject(enc); err != nil {
		return map[string]any{"error": err}
	}
	return enc.Fields
}

// A settleStore is a memory store that records its calls, and fails when it is
// told to.
type settleStore struct {
	*memstore.Store

	mu      sync.Mutex
	takes   int
	failing func(take int) bool
	slow    time.Duration   // to answer a Take
	slowly  []time.Duration // to execute each Settle, one after the other; the rest at once
	settled []leakybucket.Settlement
}

func newSettleStore() *settleStore { return &settleStore{Store: memstore.New(memstore.Options{})} }

func (s *settleStore) Take(ctx context.Context, charges []leakybucket.Charge, decisions []leakybucket.Decision) error {
	s.mu.Lock()
	s.takes++
	failing := s.failing != nil && s.failing(s.takes)
	slow := s.slow
	s.mu.Unlock()
	if slow > 0 {
		time.Sleep(slow)
	}
	if failing {
		return errors.New("the store is down")
	}
	return s.Store.Take(ctx, charges, decisions)
}

func (s *settleStore) Settle(ctx context.Context, settlements []leakybucket.Settlement) error {
	s.mu.Lock()
	s.settled = append(s.settled, settlements...)
	slow := time.Duration(0)
	if len(s.slowly) > 0 {
		slow, s.slowly = s.slowly[0], s.slowly[1:]
	}
	s.mu.Unlock()
	if slow > 0 {
		time.Sleep(slow)
	}
	if err := ctx.Err(); err != nil {
		return err // as a store would that is asked over a network
	}
	return s.Store.Settle(ctx, settlements)
}

// sum returns how many charges were corrected, and by how much in all.
func (s *settleStore) sum() (n int, diff float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.settled {
		diff += s.settled[i].Diff
	}
	return len(s.settled), diff
}

// latestSettleSite is the site of modules that are loaded now. Tests that make a
// site are not parallel.
var latestSettleSite *settleSite

// settleStoreModule makes the store a module.
type settleStoreModule struct{ store *settleStore }

func (settleStoreModule) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "throttle.stores.settle_test", New: func() caddy.Module { return new(settleStoreModule) }}
}

func (m *settleStoreModule) UnmarshalCaddyfile(*caddyfile.Dispenser) error { return nil }

func (m *settleStoreModule) Provision(caddy.Context) error {
	m.store = latestSettleSite.store
	return nil
}

func (m *settleStoreModule) Store() leakybucket.Store { return m.store }

// settleUpstream is the handler that settle_upstream stands for.
type settleUpstream struct{ site *settleSite }

func (settleUpstream) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.settle_upstream", New: func() caddy.Module { return new(settleUpstream) }}
}

func (u *settleUpstream) Provision(caddy.Context) error {
	u.site = latestSettleSite
	return nil
}

func (u *settleUpstream) ServeHTTP(w http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
	reach(r)
	return u.site.serve(w, r)
}

func init() {
	caddy.RegisterModule(settleStoreModule{})
	caddy.RegisterModule(settleUpstream{})
	httpcaddyfile.RegisterHandlerDirective("settle_upstream", func(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
		h.Next()
		return new(settleUpstream), nil
	})
}

// settleSays is an upstream that sends a status, headers given as name and value,
// and a body of ten bytes.
func settleSays(status int, headers ...string) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, _ *http.Request) error {
		for i := 0; i < len(headers); i += 2 {
			w.Header().Add(headers[i], headers[i+1])
		}
		w.WriteHeader(status)
		_, err := w.Write([]byte(strings.Repeat("x", 10)))
		return err
	}
}
