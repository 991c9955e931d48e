package servertest

import (
	"context"
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
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	_ "github.com/caddyserver/caddy/v2/modules/standard"
	"go.uber.org/zap/zapcore"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/engine"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
)

// A FuncSite is a site in this process: throttle before a handler function,
// with a store that records its calls.
type FuncSite struct {
	*Site
	Store *FlakyStore
	Serve func(http.ResponseWriter, *http.Request) error // what is throttled

	Client string // the address that requests come from
	Exit   func() // tells the site that the process is about to end
	stop   func()

	mu       sync.Mutex
	inFlight int // requests that are being served
	calm     sync.Cond
}

// NewFuncSite runs a site until the test ends. In its directives, in the order
// in which they run, settle_upstream stands for serve.
func NewFuncSite(t testing.TB, directives string) *FuncSite {
	t.Helper()
	s := &FuncSite{Store: newFlakyStore(), Client: "192.0.2.1"}
	s.calm.L = &s.mu
	Latest = s
	s.Site = Run(t, `{
		throttle {
			store memory {
				snapshot off
			}
		}
	}
	http:// {
		route {
			`+directives+`
		}
	}`)
	s.Engine().Store = s.Store
	if err := s.Module().Start(); err != nil {
		t.Fatal(err)
	}
	s.stop = sync.OnceFunc(func() {
		_ = s.Module().Stop()
		s.Stop()
	})
	t.Cleanup(s.stop)
	return s
}

// ServeHTTP implements http.Handler.
func (s *FuncSite) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.count(+1)
	defer s.count(-1)
	s.Server.ServeHTTP(w, r)
}

func (s *FuncSite) count(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inFlight += n
	s.calm.Broadcast()
}

// Wait waits until all requests that have come have been served.
func (s *FuncSite) Wait() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.inFlight > 0 {
		s.calm.Wait()
	}
}

// NewFuncZone is the site of one zone that settles. Its buckets hold 1000 and
// hardly leak.
func NewFuncZone(t testing.TB, options string) *FuncSite {
	t.Helper()
	return NewFuncSite(t, `throttle {
		zone settled {
			limit 1000 1/d
			`+options+`
		}
	}
	settle_upstream`)
}

// InBubble runs a test in virtual time, beside a site in real time. What all sites of the
// process share is that one's, such as the samples of rates: taken every ten seconds of days
// of virtual time, they would be most of the test's work.
func InBubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	beside := NewFuncSite(t, "settle_upstream")
	defer beside.stop()
	synctest.Test(t, f)
}

// Get sends a request, and returns the client's response and the value of the
// upstream's panic, if any.
func (s *FuncSite) Get(path string) (w *httptest.ResponseRecorder, panicked any) {
	w = httptest.NewRecorder()
	defer func() { panicked = recover() }()
	s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://example.com"+path, nil))
	return w, nil
}

// Level returns the level of the client's bucket after all requests have been
// served.
func (s *FuncSite) Level(zone string, shadow bool) float64 {
	s.Helper()
	s.Wait()
	return s.Fullness(zone, s.Client, 1000, 1.0/86400, shadow)
}

// WantLevel allows for the little that has leaked.
func (s *FuncSite) WantLevel(zone string, want float64) {
	s.Helper()
	if got := s.Level(zone, false); math.Abs(got-want) > 0.01 {
		s.Errorf("level of zone %s: got %v, want %v", zone, got, want)
	}
}

// Unsettled returns how many charges of a zone were left as reserved.
func (s *FuncSite) Unsettled(zone string) float64 {
	s.Helper()
	return Counted(s, telemetry.Unsettled, zone)["unsettled_total"]
}

// Logged returns the fields of a request in the access log.
func Logged(p *limit.Verdicts) map[string]any {
	enc := zapcore.NewMapObjectEncoder()
	if err := p.MarshalLogObject(enc); err != nil {
		return map[string]any{"error": err}
	}
	fields, _ := enc.Fields["throttle"].(map[string]any)
	return fields
}

// A FlakyStore is a memory store that records its calls, and fails when it is
// told to.
type FlakyStore struct {
	*memstore.Store

	Mu      sync.Mutex
	takes   int
	Failing func(take int) bool
	Slow    time.Duration   // to answer a Take
	Slowly  []time.Duration // to execute each Settle, one after the other; the rest at once
	settled []leakybucket.Settlement
}

func newFlakyStore() *FlakyStore { return &FlakyStore{Store: memstore.New(memstore.Options{})} }

func (s *FlakyStore) Take(ctx context.Context, charges []leakybucket.Charge, decisions []leakybucket.Decision) error {
	s.Mu.Lock()
	s.takes++
	take, slow := s.takes, s.Slow
	s.Mu.Unlock()
	failing := s.Failing != nil && s.Failing(take) // which may panic
	if slow > 0 {
		time.Sleep(slow)
	}
	if failing {
		return errors.New("the store is down")
	}
	return s.Store.Take(ctx, charges, decisions)
}

func (s *FlakyStore) Settle(ctx context.Context, settlements []leakybucket.Settlement) error {
	s.Mu.Lock()
	s.settled = append(s.settled, settlements...)
	slow := time.Duration(0)
	if len(s.Slowly) > 0 {
		slow, s.Slowly = s.Slowly[0], s.Slowly[1:]
	}
	s.Mu.Unlock()
	if slow > 0 {
		time.Sleep(slow)
	}
	if err := ctx.Err(); err != nil {
		return err // as a store would that is asked over a network
	}
	return s.Store.Settle(ctx, settlements)
}

// Sum returns how many charges were corrected, and by how much in all.
func (s *FlakyStore) Sum() (n int, diff float64) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	for i := range s.settled {
		diff += s.settled[i].Diff
	}
	return len(s.settled), diff
}

// Latest is the site of modules that are loaded now. Tests that make a
// site are not parallel.
var Latest *FuncSite

// upstream is the handler that settle_upstream stands for.
type upstream struct{ site *FuncSite }

func (upstream) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.settle_upstream", New: func() caddy.Module { return new(upstream) }}
}

func (u *upstream) Provision(ctx caddy.Context) error {
	u.site = Latest
	e, err := engine.Of(ctx)
	if err == nil {
		e.ReadVerdicts(ctx) // to Visit.Verdict
	}
	return err
}

func (u *upstream) ServeHTTP(w http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
	reach(r)
	return u.site.Serve(w, r)
}

func init() {
	caddy.RegisterModule(upstream{})
	httpcaddyfile.RegisterHandlerDirective("settle_upstream", func(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
		h.Next()
		return new(upstream), nil
	})
}

// Says is an upstream that sends a status, headers given as name and value,
// and a body of ten bytes.
func Says(status int, headers ...string) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, _ *http.Request) error {
		for i := 0; i < len(headers); i += 2 {
			w.Header().Add(headers[i], headers[i+1])
		}
		w.WriteHeader(status)
		_, err := w.Write([]byte(strings.Repeat("x", 10)))
		return err
	}
}
