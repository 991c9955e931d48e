package engine_test

import (
	"context"
	"errors"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/body"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/record"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// newNested is a site with an enforced zone and one in shadow around other handlers.
func newNested(t *testing.T, option, inner string) *servertest.FuncSite {
	t.Helper()
	return servertest.NewWaitSite(t, "throttle {\nzone around {\nlimit 100 1/d\n"+option+"\n}\nzone watched {\nlimit 100 1/d\nshadow\n}\n}\n"+inner, 0)
}

// wantCharged checks what these two have charged.
func wantCharged(t *testing.T, s *servertest.FuncSite, about string, around, watched float64) {
	t.Helper()
	for zone, want := range map[string]float64{"around": around, "watched": watched} {
		got := s.Fullness(zone, servertest.Office, 100, 1./86400, zone == "watched")
		check.That(t, math.Abs(got-want) <= 0.01, "%s: got level %v in zone %s, want %v", about, got, zone, want)
	}
}

func TestARequestThatIsRefusedFurtherInCostsNothing(t *testing.T) {
	const inner = "throttle {\nzone inner {\nlimit 1 1/d\nOPTION\n}\n}\n"
	with := func(option string) string { return strings.Replace(inner, "OPTION", option, 1) }
	for _, test := range []struct {
		name, option, inner     string
		served, around, watched float64
	}{
		{"by capacity", "", with(""), 1, 1, 1},
		{"by a block", "", with("block 1h"), 1, 1, 1},
		{"without asking the store", "", with("override " + servertest.Office + " deny"), 0, 0, 0},
		{"for want of a key", "", with("key header X-Key missing refuse"), 0, 0, 0},
		{"two handlers further in", "", "throttle {\nzone between {\nlimit 200 1/d\n}\n}\n" + with(""), 1, 1, 1},
		{"by an error for error routes", "", with("refusal error"), 1, 1, 1},
		{"in a subroute", "", "route {\n" + with("") + "}\n", 1, 1, 1},
		{"while the response is settled", "settle status 4xx 50", with(""), 1, 0, 1},
		{"while nothing is reserved", "settle status 4xx 50 after", with(""), 1, 0, 1},
		{"while success is refunded", "refund status 302", with(""), 1, 1, 1},
	} {
		servertest.InBubble(t, func(t *testing.T) {
			s := newNested(t, test.option, test.inner)
			served := 0.0
			for range 6 {
				if s.Visit(servertest.Office, "/").Reached {
					served++
				}
			}
			check.Equal(t, served, test.served, "%s: requests served", test.name)
			wantCharged(t, s, test.name, test.around, test.watched)
			check.Equal(t, s.Unsettled("around"), 0, "%s: charges counted as left", test.name)
		})
	}
}

// It has waited for its place, and others have queued behind it.
func TestARequestThatIsRefusedAfterItsDelayCostsNothing(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := servertest.NewWaitSite(t, "throttle {\nzone around {\nlimit 10 1/s\ndelay\n}\n}\nthrottle {\nzone inner {\nlimit 1 1/d\n}\n}\n", 0)
		for range 4 { // the first is served at once, the others after 1, 2 and 3 s
			s.Visit(servertest.Office, "/")
		}
		servertest.Sleep(1500 * time.Millisecond)
		got := s.Fullness("around", servertest.Office, 10, 1, false)
		check.That(t, math.Abs(got-1.5) <= 0.01, "got level %v, want 1.5 of the two that wait", got)
		servertest.Sleep(time.Minute)
	})
}

// One request is served, one waits, and more would.
func TestARequestThatWaitsInVainFurtherInCostsNothing(t *testing.T) {
	for name, ends := range map[string]func(s *servertest.FuncSite, waits *servertest.Visit){
		"its client leaves":    func(_ *servertest.FuncSite, waits *servertest.Visit) { waits.Leave() },
		"the process exits":    func(s *servertest.FuncSite, _ *servertest.Visit) { s.Exit() },
		"the queue is full":    func(s *servertest.FuncSite, _ *servertest.Visit) { s.Visits(3, servertest.Office, "/") },
		"it is served in time": func(*servertest.FuncSite, *servertest.Visit) {},
	} {
		servertest.InBubble(t, func(t *testing.T) {
			s := newNested(t, "", "throttle {\nzone inner {\n"+servertest.LikeNginx+" queue 1\n}\n}\n")
			s.Visit(servertest.Office, "/")
			waits := s.Visit(servertest.Office, "/")
			wantCharged(t, s, name, 2, 2)
			servertest.Sleep(500 * time.Millisecond)
			ends(s, waits)
			servertest.Sleep(time.Minute)
			want := 1.0
			if waits.Reached {
				want = 2
			}
			left := name == "its client leaves" || name == "the process exits"
			check.That(t, waits.Reached != left, "%s: got it served: %v", name, waits.Reached)
			wantCharged(t, s, name, want, want)
			servertest.WantEmpty(t, "inner")
		})
	}
}

// Once the upstream has it, a request has cost something, whatever becomes of it.
func TestARequestThatHasLeftForItsUpstreamStaysCharged(t *testing.T) {
	for name, serve := range map[string]func(http.ResponseWriter, *http.Request) error{
		"an answer": func(w http.ResponseWriter, _ *http.Request) error { w.WriteHeader(http.StatusOK); return nil },
		"a refusal": func(w http.ResponseWriter, _ *http.Request) error {
			w.WriteHeader(http.StatusTooManyRequests)
			return nil
		},
		"an error":           func(http.ResponseWriter, *http.Request) error { return errors.New("broken") },
		"a bad gateway":      func(http.ResponseWriter, *http.Request) error { return caddyhttp.Error(502, errors.New("gone")) },
		"an aborted answer":  func(http.ResponseWriter, *http.Request) error { panic(http.ErrAbortHandler) },
		"a panic":            func(http.ResponseWriter, *http.Request) error { panic("broken") },
		"a client that left": func(w http.ResponseWriter, r *http.Request) error { <-r.Context().Done(); return nil },
	} {
		servertest.InBubble(t, func(t *testing.T) {
			s := newNested(t, "", "throttle {\nzone inner {\nlimit 5 1/d\n}\n}\n")
			s.Serve = serve
			s.Visit(servertest.Office, "/").Leave()
			servertest.Sleep(time.Second)
			wantCharged(t, s, name, 1, 1)
		})
	}
}

// So it has if a proxy was asked before it was refused.
func TestARequestThatIsRefusedAfterAnUpstreamWasAskedStaysCharged(t *testing.T) {
	auth := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer auth.Close()
	s := servertest.Run(t, "http:// {\nroute {\nthrottle around 2 1/d\nin_flight php 5 {\nshare\n}\nforward_auth "+auth.URL+" {\nuri /\n}\n"+
		"throttle {\nzone inner {\nlimit 5 1/d\noverride "+servertest.Office+" deny\n}\n}\nrespond ok\n}\n}")
	for range 3 {
		s.From(servertest.Office+":1").Passes(0, "/")
	}
	servertest.WantCounts(t, "around", map[string]float64{"admitted": 2, "refused capacity": 1})
	mean := s.Engine().InFlight["php"].State.Gate.Load().Mean
	check.That(t, mean != time.Second, "got a mean of %v for slots, as is assumed before the first was held", mean)
}

// A panicky matcher panics, or fails, when the request says so.
type panicky struct {
	On string `json:"on,omitempty"`
}

func init() { caddy.RegisterModule(panicky{}) }

func (panicky) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.matchers.panicky_test", New: func() caddy.Module { return new(panicky) }}
}

func (p *panicky) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next()
	d.Args(&p.On)
	return nil
}

var errPanicky = errors.New("somebody's matcher is broken")

func (panicky) MatchWithError(r *http.Request) (bool, error) {
	read := body.Of(r) != nil
	switch {
	case r.URL.Path == "/panics", r.URL.Path == "/panics-later" && read:
		panic(errPanicky)
	case r.URL.Path == "/fails":
		return false, errPanicky
	}
	return true, nil
}

// What panics or fails before the request has left for its upstream leaves nothing charged and
// no memory taken, and is Caddy's to report.
func TestAPanicBeforeTheUpstreamIsAskedCostsNothing(t *testing.T) {
	const matcher = "throttle {\nzone inner {\nlimit 100 1/d\nmatch panicky_test on\ncost body_items\n}\n}\n"
	store := func(at int) func(take int) bool {
		return func(take int) bool {
			if take == at {
				panic(errPanicky)
			}
			return false
		}
	}
	for _, test := range []struct {
		name, path, inner string
		failing           func(take int) bool
	}{
		{"a matcher further in", "/panics", matcher, nil},
		{"a matcher further in, after the body", "/panics-later", strings.ReplaceAll(matcher, "match panicky_test on\ncost body_items", "cost body_items {\npanicky_test on\n}"), nil},
		{"a matcher further in fails", "/fails", matcher, nil},
		{"the matcher of a directive further in", "/panics", "@panicky panicky_test on\nthrottle @panicky inner 5 1/d\n", nil},
		{"the store, asked further in", "/", "throttle {\nzone inner {\nlimit 5 1/d\n}\n}\n", store(2)},
		{"the store", "/", "", store(1)},
	} {
		servertest.InBubble(t, func(t *testing.T) {
			s := newNested(t, "", test.inner)
			s.Store.Failing = test.failing
			r := httptest.NewRequest(http.MethodPost, "http://example.com"+test.path, strings.NewReader("[1,2,3]"))
			r.RemoteAddr = servertest.Office + ":1"
			v := s.Come(r)
			if v.Reached || test.path != "/fails" && v.Panicked != errPanicky || test.path == "/fails" && v.Code != http.StatusInternalServerError {
				t.Errorf("%s: got %d, panic %v, at the upstream %v", test.name, v.Code, v.Panicked, v.Reached)
			}
			wantCharged(t, s, test.name, 0, 0)
			memory, file := s.Engine().Control.Bodies.Held()
			check.That(t, memory+file == 0, "%s: got %d and %d bytes of body held, want none", test.name, memory, file)
		})
	}
}

// In error routes nothing is charged and nothing given back: what the request has cost by then
// it has cost.
func TestErrorRoutesChargeAndGiveBackNothing(t *testing.T) {
	const full = "throttle {\nzone inner {\nlimit 1 1/d\nrefusal error\n}\n}\n"
	for _, test := range []struct {
		name, inner, routed string
		status              int // of the upstream's error, or 0
		around              float64
		want                int // answers
	}{
		{"the upstream fails, and another answers", "", "", 502, 3, 203},
		{"through a zone that would refuse", full, full, 502, 1, 203},
		{"through a zone of its own", "", "throttle {\nzone other {\nlimit 1 1/d\n}\n}\n", 502, 3, 203},
		{"a refusal further in, and the error route answers", full, "", 0, 1, 203},
	} {
		servertest.InBubble(t, func(t *testing.T) {
			s := servertest.NewFuncSite(t, "throttle {\nzone around {\nlimit 100 1/d\n}\nzone watched {\nlimit 100 1/d\nshadow\n}\n}\n"+test.inner+
				"settle_upstream\n}\nhandle_errors {\nroute {\n"+test.routed+"settle_upstream\n}")
			s.Serve = func(w http.ResponseWriter, r *http.Request) error {
				if r.Context().Value(caddyhttp.ErrorCtxKey) == nil && test.status != 0 {
					return caddyhttp.Error(test.status, errors.New("gone"))
				}
				w.WriteHeader(http.StatusNonAuthoritativeInfo)
				return nil
			}
			visits := s.Visits(3, servertest.Office, "/")
			for i, v := range visits {
				check.Equal(t, v.Code, test.want, "%s, request %d", test.name, i+1)
			}
			wantCharged(t, s, test.name, test.around, test.around)
			check.Equal(t, s.Fullness("other", servertest.Office, 1, 1./86400, false), 0, "%s: in the error route's zone: level", test.name)
		})
	}
}

// A detacher calls the next handler in a context that outlives the client.
type detacher struct{}

func init() {
	caddy.RegisterModule(detacher{})
	httpcaddyfile.RegisterHandlerDirective("detach_test", func(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
		h.Next()
		return new(detacher), nil
	})
}

func (detacher) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.detach_test", New: func() caddy.Module { return new(detacher) }}
}

func (detacher) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	record.Of(r).Client = r.Context()
	return next.ServeHTTP(w, r.WithContext(context.WithoutCancel(r.Context())))
}

func TestAClientThatLeavesIsSeenWithinACallThatOutlivesIt(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := newNested(t, "", "detach_test\nthrottle {\nzone inner {\n"+servertest.LikeNginx+"\n}\n}\n")
		s.Visit(servertest.Office, "/")
		waits := s.Visit(servertest.Office, "/")
		waits.Leave()
		servertest.Sleep(0)
		servertest.WantGone(t, waits)
		wantCharged(t, s, "after a hang-up", 1, 1)
		servertest.WantEmpty(t, "inner")
	})
}
