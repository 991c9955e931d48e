package inflight_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/body"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/inflight/call"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/response"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// A client of the tests below, which all come from networks of their own.
func client(n int) string { return fmt.Sprintf("203.0.%d.7", n) }

// wantWaits checks how long requests waited until they were served, in seconds; -1 stands for one
// that was refused.
func wantWaits(t *testing.T, visits []*servertest.Visit, want ...float64) {
	t.Helper()
	var got []float64
	for _, v := range visits {
		switch {
		case !v.Ended && !v.Reached:
			got = append(got, -2)
		case v.Reached:
			got = append(got, v.Waited.Round(time.Millisecond).Seconds())
		default:
			got = append(got, -1)
		}
	}
	check.Slices(t, got, want, "seconds: waits")
}

// wantRefused checks how a request was refused.
func wantRefused(t *testing.T, v *servertest.Visit, status int, retry string) {
	t.Helper()
	check.That(t, !v.Reached && v.Code == status, "got %d, at the upstream %v, want %d", v.Code, v.Reached, status)
	check.Equal(t, v.Header().Get("Retry-After"), retry, "Retry-After")
}

// wantIdle checks that nothing of requests is held any more.
func wantIdle(t *testing.T, s *servertest.FuncSite) {
	t.Helper()
	for name, l := range s.Engine().InFlight {
		load := l.State.Gate.Load()
		check.That(t, load.Running == 0 && load.Waiting == [4]int{}, "%s: got %+v, want nobody running or waiting", name, load)
		memory, file := l.Bodies.Held()
		check.That(t, memory+file == 0, "%s: got %d bytes held in memory and %d in the file, want none", name, memory, file)
	}
}

// onSite runs a test in a bubble with a site whose upstream takes so long. Nothing may be held in
// the end.
func onSite(t *testing.T, options string, takes time.Duration, test func(t *testing.T, s *servertest.FuncSite)) {
	t.Helper()
	servertest.InBubble(t, func(t *testing.T) {
		s := servertest.NewWaitSite(t, options, takes)
		test(t, s)
		wantIdle(t, s)
	})
}

// An invalid definition is an error of the load, wherever the mistake is.
func TestInvalidDefinitions(t *testing.T) {
	for definition, want := range map[string]string{
		`{"name":"a","slots":1,"buffer":"2GiB"}`:                            "buffer",
		`{"name":"a","slots":1,"exempt":[{"path_regexp":{"pattern":"("}}]}`: "path_regexp",
	} {
		err := servertest.Provision(t, map[string]string{"throttle": `{"in_flight":[` + definition + `]}`})
		check.That(t, err != nil && strings.Contains(err.Error(), want), "%s: got %v, want an error about %s", definition, err, want)
	}
}

// TestSlots: how many of which requests are served at once.
func TestSlots(t *testing.T) {
	for name, test := range map[string]struct {
		options string
		visits  func(s *servertest.FuncSite) []*servertest.Visit
		want    []float64
	}{
		"all together": {"in_flight php 2", func(s *servertest.FuncSite) []*servertest.Visit {
			return []*servertest.Visit{s.Visit(client(1), "/"), s.Visit(client(2), "/"), s.Visit(client(3), "/")}
		}, []float64{0, 0, -1}},
		"by client": {"in_flight php 1 client_ip", func(s *servertest.FuncSite) []*servertest.Visit {
			return []*servertest.Visit{s.Visit(client(1), "/"), s.Visit(client(2), "/"), s.Visit(client(1), "/")}
		}, []float64{0, 0, -1}},
		"by a header, and without it by client": {"in_flight php 1 header X-Tenant", func(s *servertest.FuncSite) []*servertest.Visit {
			return []*servertest.Visit{
				s.Visit(client(1), "/", "X-Tenant", "a"), s.Visit(client(1), "/", "X-Tenant", "b"), s.Visit(client(2), "/", "X-Tenant", "a"),
				s.Visit(client(1), "/"), s.Visit(client(2), "/"), s.Visit(client(1), "/"),
			}
		}, []float64{0, 0, -1, 0, 0, -1}},
		"first in, first out": {"in_flight php 1 {\nwait 3500ms\n}", func(s *servertest.FuncSite) []*servertest.Visit {
			return s.Visits(5, client(1), "/")
		}, []float64{0, 1, 2, 3, -1}},
		"a queue of two": {"in_flight php 1 {\nwait 1m\nqueue 2\n}", func(s *servertest.FuncSite) []*servertest.Visit {
			return []*servertest.Visit{s.Visit(client(1), "/"), s.Visit(client(2), "/"), s.Visit(client(3), "/"), s.Visit(client(4), "/")}
		}, []float64{0, 1, 2, -1}},
		"matched": {"in_flight /php/* php 1", func(s *servertest.FuncSite) []*servertest.Visit {
			return []*servertest.Visit{s.Visit(client(1), "/php/x"), s.Visit(client(2), "/php/x"), s.Visit(client(3), "/x")}
		}, []float64{0, -1, 0}},
		"matched as sent and as rewritten": {"rewrite /a /php/a\nrewrite /php/b /b\nin_flight /php/* php 1", func(s *servertest.FuncSite) []*servertest.Visit {
			return []*servertest.Visit{s.Visit(client(1), "/a"), s.Visit(client(2), "/php/b"), s.Visit(client(3), "/b")}
		}, []float64{0, -1, 0}},
		"exempt as sent and as rewritten": {"rewrite /free/c /c\nin_flight php 1 {\nexempt path /free/*\nexempt client_ip 203.0.9.7\n}", func(s *servertest.FuncSite) []*servertest.Visit {
			return []*servertest.Visit{s.Visit(client(1), "/"), s.Visit(client(2), "/free/x"), s.Visit(client(3), "/free/c"), s.Visit(client(9), "/")}
		}, []float64{0, 0, -1, 0}},
		"once, however often it is routed": {"in_flight php 1\nin_flight php 1\nroute {\nin_flight php 1\n}", func(s *servertest.FuncSite) []*servertest.Visit {
			return []*servertest.Visit{s.Visit(client(1), "/"), s.Visit(client(2), "/")}
		}, []float64{0, -1}},
	} {
		t.Run(name, func(t *testing.T) {
			onSite(t, test.options, time.Second, func(t *testing.T, s *servertest.FuncSite) {
				visits := test.visits(s)
				servertest.Sleep(time.Minute)
				wantWaits(t, visits, test.want...)
				for i, v := range visits {
					if test.want[i] < 0 {
						wantRefused(t, v, http.StatusTooManyRequests, "1")
					}
				}
			})
		})
	}
}

// TestTurns: clients take turns, and who would come too late is refused at once.
func TestTurns(t *testing.T) {
	onSite(t, "in_flight php 2 {\nshare\nwait 5s\n}", time.Second, func(t *testing.T, s *servertest.FuncSite) {
		greedy := s.Visits(5, client(1), "/")
		other := s.Visit(client(2), "/")
		servertest.Sleep(time.Minute)
		wantWaits(t, append(greedy, other), 0, 1, 2, 3, 4, 0) // half of the slots is for others while they wait
	})
	onSite(t, "in_flight php 1 {\nshare\nwait 3s\nrank member header X-Rank member\nrank crawler header X-Rank crawler\n}", 2*time.Second, func(t *testing.T, s *servertest.FuncSite) {
		var visits []*servertest.Visit
		for i := range 5 {
			visits = append(visits, s.Visit(client(i), "/"))
		}
		v := visits[4]
		check.Assume(t, v.Ended && v.Code == http.StatusServiceUnavailable, "got %d, ended %v, want 503 at once", v.Code, v.Ended)
		seconds, _ := strconv.Atoi(visits[4].Header().Get("Retry-After"))
		check.That(t, seconds >= 5 && seconds <= 10, "got Retry-After %d, want from 5 to 10", seconds)
		visits = append(visits, s.Visit(client(9), "/", "X-Rank", "member"))
		servertest.Sleep(time.Minute)
		wantWaits(t, visits, 0, -1, -1, -1, -1, 2)
		servertest.WantCounts(t, "php", map[string]float64{"admitted first": 1, "delayed member": 1, "refused first timeout": 4})
	})
}

// upload returns a request whose body comes as the test writes it.
func upload(addr, path string, length int64) (*http.Request, *io.PipeWriter) {
	body, send := io.Pipe()
	r := httptest.NewRequest(http.MethodPost, "http://example.com"+path, body)
	r.RemoteAddr, r.ContentLength = addr+":1", length
	return r, send
}

// TestBodiesAreReceivedBeforeTheyQueue: a client that sends slowly holds neither a slot nor a place.
func TestBodiesAreReceivedBeforeTheyQueue(t *testing.T) {
	onSite(t, "in_flight php 1 {\nwait 2s\nqueue 1\n}", 0, func(t *testing.T, s *servertest.FuncSite) {
		var got []string
		s.Serve = func(_ http.ResponseWriter, r *http.Request) error {
			text, err := io.ReadAll(r.Body)
			got = append(got, fmt.Sprintf("%s, %d, %s, %v", text, r.ContentLength, r.Header.Get("Content-Length"), err))
			<-time.After(time.Second)
			return nil
		}
		r, send := upload(client(1), "/", -1)
		slow := s.Come(r)
		n, _ := send.Write([]byte("slow"))
		check.Assume(t, n == 4, "got nobody that reads the body")
		servertest.Sleep(time.Minute)
		visits := []*servertest.Visit{s.Visit(client(2), "/"), s.Visit(client(3), "/"), s.Visit(client(4), "/")}
		servertest.Sleep(0)
		wantWaits(t, visits, 0, -2, -1)
		servertest.Sleep(time.Minute)
		send.Close()
		servertest.Sleep(time.Minute)
		wantWaits(t, append(visits, slow), 0, 1, -1, 120)
		check.Equal(t, got[len(got)-1], "slow, 4, 4, <nil>", "the body")
	})
}

// long is a request with a body of some size.
func long(addr, path string, size int) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "http://example.com"+path, strings.NewReader(strings.Repeat("x", size)))
	r.RemoteAddr = addr + ":1"
	return r
}

// TestBodiesThatAreNotReceived: too long ones, those for which there is no room, and conversations.
func TestBodiesThatAreNotReceived(t *testing.T) {
	onSite(t, "in_flight php 1 {\nbuffer 64KiB\n}", time.Second, func(t *testing.T, s *servertest.FuncSite) {
		tooLong := s.Come(long(client(1), "/", 64<<10+1))
		fits := s.Come(long(client(1), "/", 64<<10))
		servertest.Sleep(time.Minute)
		wantRefused(t, tooLong, http.StatusRequestEntityTooLarge, "")
		wantWaits(t, []*servertest.Visit{fits}, 0)
		servertest.WantCounts(t, "php", map[string]float64{"admitted": 1, "refused too_large": 1})
	})
	onSite(t, "in_flight php 1 {\nshare\n}", time.Second, func(t *testing.T, s *servertest.FuncSite) {
		s.Engine().Control.Bodies.SetBounds(body.Bounds{Request: 1 << 20, Memory: 128 << 10, Files: 128 << 10})
		noRoom := s.Come(long(client(1), "/", 256<<10))
		servertest.Sleep(time.Minute)
		wantRefused(t, noRoom, http.StatusServiceUnavailable, "1")
		servertest.WantCounts(t, "php", map[string]float64{"refused first memory": 1})
	})
	onSite(t, "in_flight php 1 {\nbuffer off\n}", 0, func(t *testing.T, s *servertest.FuncSite) {
		s.Serve = func(w http.ResponseWriter, r *http.Request) error {
			var word [4]byte
			_, err := io.ReadFull(r.Body, word[:])
			_, _ = w.Write(word[:])
			<-time.After(time.Minute)
			return err
		}
		r, send := upload(client(1), "/", -1)
		conversation := s.Come(r)
		_, _ = send.Write([]byte("ping"))
		servertest.Sleep(0)
		check.That(t, conversation.Reached, "got it received, want it handed on as it comes")
		wantRefused(t, s.Visit(client(2), "/"), http.StatusTooManyRequests, "1")
		send.Close()
		servertest.Sleep(time.Hour)
	})
}

// TestClientsThatLeave: the slot of one that is served is held until the upstream is done, and
// others hold nothing.
func TestClientsThatLeave(t *testing.T) {
	onSite(t, "in_flight php 1 {\nwait 1m\n}", 0, func(t *testing.T, s *servertest.FuncSite) {
		cancelled := false
		s.Serve = func(w http.ResponseWriter, r *http.Request) error {
			if r.URL.Path == "/begun" {
				_, _ = w.Write([]byte("the beginning"))
			}
			<-time.After(10 * time.Second)
			cancelled = cancelled || r.Context().Err() != nil
			return nil
		}
		for _, path := range []string{"/", "/begun"} {
			served, waiting, next := s.Visit(client(1), path), s.Visit(client(2), "/"), s.Visit(client(3), "/")
			r, send := upload(client(4), "/", -1)
			sending := s.Come(r)
			_, _ = send.Write([]byte("some"))
			servertest.Sleep(time.Second)
			for _, v := range []*servertest.Visit{served, waiting, sending} {
				v.Leave()
			}
			_, _ = send.Write([]byte("more"))
			send.CloseWithError(errors.New("gone"))
			servertest.Sleep(time.Second)
			servertest.WantGone(t, waiting)
			servertest.WantGone(t, sending)
			servertest.Sleep(time.Minute)
			wantWaits(t, []*servertest.Visit{served, next}, 0, 10)
			wantIdle(t, s)
		}
		check.That(t, !cancelled, "got a call that has ended with its client, want it to go on")
	})
}

// TestPatience: a call within another one lasts no longer without its client.
func TestPatience(t *testing.T) {
	onSite(t, "in_flight outer 1\nin_flight inner 1", 0, func(t *testing.T, s *servertest.FuncSite) {
		s.Serve = func(_ http.ResponseWriter, r *http.Request) error {
			<-r.Context().Done()
			return nil
		}
		s.Visit(client(1), "/").Leave()
		servertest.Sleep(call.Patience + time.Second)
		wantIdle(t, s)
	})
}

// A panics matcher panics where the path says so.
type panics struct {
	Where string `json:"where"`
}

func (panics) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.matchers.test_panics", New: func() caddy.Module { return new(panics) }}
}

func (p *panics) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next()
	d.Args(&p.Where)
	return nil
}

func (p *panics) MatchWithError(r *http.Request) (bool, error) {
	switch r.URL.Path {
	case "/panics/" + p.Where:
		panic(http.ErrAbortHandler)
	case "/fails/" + p.Where:
		return false, errors.New("no")
	}
	return false, nil
}

func init() {
	caddy.RegisterModule(panics{})
	// Its own error route, which is empty, goes on to the handlers after it.
	httpcaddyfile.RegisterHandlerDirective("test_catches", func(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
		catches, err := httpcaddyfile.ParseSegmentAsSubroute(h)
		catches.(*caddyhttp.Subroute).Errors = new(caddyhttp.HTTPErrorConfig)
		return catches, err
	})
}

// TestPanics: whatever panics or fails, nothing is held afterwards.
func TestPanics(t *testing.T) {
	const directives = "in_flight outer 1 {\nwait 5s\n}\nin_flight php 1 {\nshare\nwait 5s\nexempt test_panics exempt\nrank crawler test_panics rank\n}\nrespond @x x\n@x test_panics within"
	onSite(t, directives, 0, func(t *testing.T, s *servertest.FuncSite) {
		s.Serve = func(_ http.ResponseWriter, r *http.Request) error {
			if r.URL.Path == "/panics/upstream" {
				panic(http.ErrAbortHandler)
			}
			return nil
		}
		for _, path := range []string{"/panics/exempt", "/panics/rank", "/panics/within", "/panics/upstream"} {
			v := s.Come(long(client(1), path, 100<<10))
			servertest.Sleep(time.Minute)
			check.Equal[any](t, v.Panicked, http.ErrAbortHandler, "%s, want the panic handed on", path)
			wantIdle(t, s)
		}
		failed, ok := s.Visit(client(1), "/fails/exempt"), s.Visit(client(1), "/fails/rank")
		servertest.Sleep(time.Minute)
		check.That(t, failed.Code == http.StatusInternalServerError && !failed.Reached, "got %d, at the upstream %v, want 500", failed.Code, failed.Reached)
		check.That(t, ok.Reached, "got a request whose rank is unknown kept from the upstream")
	})
}

// TestWhomTheGlobalExemptIsAsked about: requests that the handler matches, without what only the
// upstream may say. A matcher of its own that fails is counted where a switch puts it in shadow.
func TestWhomTheGlobalExemptIsAsked(t *testing.T) {
	onSite(t, "@m {\npath /slow /fails/*\nnot test_panics match\n}\nin_flight @m php 1 {\nshare\nrank member told X-User sid\n}", time.Second, func(t *testing.T, s *servertest.FuncSite) {
		e := s.Engine()
		e.Exempt = caddyhttp.MatcherSets{{caddyhttp.MatchHeader{"X-User": {"*"}}}, {&panics{"exempt"}}}
		first := s.Visit(client(1), "/slow", "X-User", "admin")
		second := s.Visit(client(2), "/slow", "X-User", "admin")
		failed := s.Visit(client(3), "/fails/match")
		check.That(t, first.Reached && !second.Reached && failed.Code == http.StatusInternalServerError, "got %v, %v, %d", first.Reached, second.Reached, failed.Code)
		e.Exempt = caddyhttp.MatcherSets{{&panics{"exempt"}}}
		outside := s.Visit(client(4), "/panics/exempt")
		check.That(t, outside.Reached, "got a request that is not matched kept away")
		now := time.Now()
		e.Control.Changes.Table.Apply(now, override.Entry{Name: override.Name{Kind: override.OfShadow, Zone: "php"}, Span: override.Span{Since: now, Until: now.Add(time.Minute)}})
		shadowed := s.Visit(client(5), "/fails/match")
		check.That(t, shadowed.Reached, "got a request kept away by a limit in shadow")
		servertest.Sleep(time.Minute)
	})
}

// TestErrors: a request that errs keeps its slot until its error page is there, and no longer,
// whatever becomes of that.
func TestErrors(t *testing.T) {
	for name, directives := range map[string]string{
		"not routed": "in_flight php 1" + errorRoute,
		"routed":     "in_flight php 1" + errorRoute + "in_flight php 1",
		"share":      "in_flight php 1 {\nshare\n}" + errorRoute + "in_flight php 1 {\nshare\n}",
		"nested":     "in_flight outer 1\nin_flight php 1" + errorRoute + "in_flight php 1",
		"only there": errorRoute + "in_flight php 1",
		"around":     "in_flight php 1\ntest_catches {\nroute {\nsettle_upstream\n}\n}\nin_flight php 1",
		"caught":     "}\nroute /* {\ntest_catches\n}\nroute {\nin_flight php 1",
	} {
		for _, path := range []string{"/", "/fails", "/panics", "/leaves"} {
			t.Run(name+path, func(t *testing.T) {
				servertest.InBubble(t, func(t *testing.T) {
					s := newErrorSite(t, directives)
					v := s.Visit(client(1), path)
					if path == "/leaves" && name != "not routed" { // in_flight does not see the error page of that
						v.Leave()
					}
					servertest.Sleep(900 * time.Millisecond)
					check.Equal(t, s.Engine().InFlight["php"].State.Gate.Load().Running, 1, "slots while its error page is made")
					servertest.Sleep(time.Minute)
					if !v.Ended || path == "/" && v.Code != http.StatusNotFound {
						t.Errorf("got %d, ended %v, want 404", v.Code, v.Ended)
					}
					wantIdle(t, s)
				})
			})
		}
	}
}

// A CONNECT is refused whatever matches, but in shadow, and so is what has no path for matchers.
func TestCONNECT(t *testing.T) {
	for directive, want := range map[string]int{
		"in_flight php 1":             http.StatusNotImplemented,
		"in_flight php 1 {\nshare\n}": http.StatusNotImplemented,
		"@post method POST\nin_flight @post php 1 {\nexempt path /x\n}":                       http.StatusNotImplemented,
		"@post method POST\nthrottle @post {\nzone posts {\nlimit 9 1/s\nrefusal error\n}\n}": http.StatusNotImplemented,
		"in_flight php 1 {\nshadow\n}":                                                        http.StatusOK,
		"in_flight php 1 {\nbuffer off\nrefusal error\n}":                                     http.StatusNotImplemented,
	} {
		s := servertest.NewFuncSite(t, directive+"\nsettle_upstream")
		s.Serve = servertest.Says(http.StatusOK)
		for method, opaque := range map[string]string{http.MethodConnect: "", http.MethodGet: "http://example.com/login"} {
			w, r := httptest.NewRecorder(), httptest.NewRequest(method, "http://example.com/", strings.NewReader("body"))
			r.URL.Opaque = opaque
			s.ServeHTTP(w, r)
			check.That(t, w.Code == want && w.Header()["Retry-After"] == nil, "%s, %q: got %d with %v, want %d", method, directive, w.Code, w.Header(), want)
		}
	}
}

// TestEarlyData is sent back, for its address may be forged, by which places in the queue and memory are divided.
func TestEarlyData(t *testing.T) {
	for _, directive := range []string{"in_flight php 1", "in_flight php 1 {\nwait 5s\n}", "in_flight php 1 {\nshare\n}", "in_flight php 1 client_ip"} {
		s := servertest.NewFuncSite(t, directive+"\nsettle_upstream")
		s.Serve = servertest.Says(http.StatusOK)
		for done, want := range map[bool]int{false: http.StatusTooEarly, true: http.StatusOK} {
			w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "https://example.com/", nil)
			r.TLS = &tls.ConnectionState{HandshakeComplete: done}
			s.ServeHTTP(w, r)
			check.That(t, w.Code == want && w.Header()["Retry-After"] == nil, "%q, after the handshake: %v: got %d with %v, want %d", directive, done, w.Code, w.Header(), want)
		}
	}
}

// TestStreamsThatAreResetAtOnce take no free slot: their calls would outlast them, and cost the upstream
// whole requests.
func TestStreamsThatAreResetAtOnce(t *testing.T) {
	for _, directive := range []string{"in_flight php 1", "in_flight php 1 {\nwait 5s\n}", "in_flight php 1 {\nshare\n}"} {
		s := servertest.NewFuncSite(t, directive+"\nsettle_upstream")
		s.Serve = servertest.Says(http.StatusOK)
		for _, major := range []int{2, 3} {
			ctx, leave := context.WithCancel(t.Context())
			leave()
			w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "http://example.com/", nil).WithContext(ctx)
			r.ProtoMajor = major
			s.ServeHTTP(w, r)
			check.Equal(t, w.Code, response.StatusClientLeft, "%q, HTTP/%d", directive, major)
			wantIdle(t, s)
		}
	}
}

// TestErrorPages: a client that takes its time to read one holds no slot, unless an upstream may make it.
// The error route still has the placeholders and the body.
func TestErrorPages(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		for i, test := range []struct {
			route string
			want  int
		}{
			{"respond \"{http.in_flight.decision} {http.request.body}\" 404", 0},
			{"rewrite * /err.html\nfile_server", 0},
			{"handle {\nheader X y\nrespond oops 404\n}", 0},
			{"route {\nsettle_upstream\n}", 1},
			{"templates\nrespond oops 404", 1},
		} {
			name := fmt.Sprint("php", i)
			s := servertest.NewFuncSite(t, "in_flight "+name+" 1\nsettle_upstream\n}\nhandle_errors {\n"+test.route)
			s.Serve = func(w http.ResponseWriter, r *http.Request) error {
				if r.Context().Value(caddyhttp.ErrorCtxKey) == nil {
					return caddyhttp.Error(http.StatusNotFound, errors.New("missing"))
				}
				w.WriteHeader(http.StatusNotFound)
				return nil
			}
			w := &slow{ResponseRecorder: httptest.NewRecorder(), running: func() int { return s.Engine().InFlight[name].State.Gate.Load().Running }}
			ctx, leave := context.WithCancel(t.Context())
			s.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "http://example.com/", strings.NewReader("hello")).WithContext(ctx))
			check.That(t, w.Code == http.StatusNotFound && w.most == test.want, "%q: got %d, and %d slots while the page is sent, want %d", test.route, w.Code, w.most, test.want)
			if i == 0 {
				check.Equal(t, w.Body.String(), "admitted hello", "the page")
			}
			leave()
			synctest.Wait()
			memory, file := s.Engine().Control.Bodies.Held()
			check.That(t, memory == 0 && file == 0, "%q: got %d and %d bytes of the body left behind", test.route, memory, file)
		}
	})
}

// Of several in_flight, an error page is told of the one that has refused.
func TestErrorPageOfAnInnerRefusal(t *testing.T) {
	s := servertest.NewFuncSite(t, "in_flight outer 5\nin_flight inner 1 {\nrefusal error\n}\nsettle_upstream\n}\nhandle_errors {\nrespond \"{http.in_flight.name} {http.in_flight.decision}\"")
	w := httptest.NewRecorder()
	s.Serve = func(http.ResponseWriter, *http.Request) error {
		s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://example.com/", nil)) // while the slot is taken
		return nil
	}
	s.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "http://example.com/", nil))
	check.Equal(t, w.Body.String(), "inner refused", "the page")
}

// A slow client looks how many slots are held when it is sent something.
type slow struct {
	*httptest.ResponseRecorder
	running func() int
	most    int
}

func (w *slow) WriteHeader(status int) {
	w.most = max(w.most, w.running())
	w.ResponseRecorder.WriteHeader(status)
}

// TestRefusalToErrorRoute: a request that the site's error routes refuse still has its body there, also if
// another in_flight has called the one that received it.
func TestRefusalToErrorRoute(t *testing.T) {
	onSite(t, "in_flight outer 5 {\nbuffer off\n}\nin_flight php 1 {\nrefusal error\n}"+errorRoute, 0, func(t *testing.T, s *servertest.FuncSite) {
		var read []byte
		var err error
		s.Serve = func(w http.ResponseWriter, r *http.Request) error {
			if r.Context().Value(caddyhttp.ErrorCtxKey) == nil {
				<-time.After(time.Minute)
				return nil
			}
			read, err = io.ReadAll(r.Body)
			w.WriteHeader(http.StatusTooManyRequests)
			return nil
		}
		s.Visit(client(1), "/")
		const size = 100 << 10
		v := s.Come(long(client(2), "/", size))
		check.That(t, len(read) == size && err == nil && v.Code == http.StatusTooManyRequests, "got %d bytes, %v, %d, want %d, none and 429", len(read), err, v.Code, size)
		servertest.Sleep(2 * time.Minute)
	})
}

// TestErrorRouteAfterTheBody: once an upstream has read any of the body, an error route has none, nor its length.
func TestErrorRouteAfterTheBody(t *testing.T) {
	for _, directive := range []string{"in_flight php 9", "throttle {\nzone login {\nfield password\nlimit 9 1/s\n}\n}"} {
		for _, read := range []int64{0, 4, 10} {
			s := servertest.NewFuncSite(t, directive+"\nsettle_upstream\n}\nhandle_errors {\nroute {\nsettle_upstream\n}")
			s.Serve = func(w http.ResponseWriter, r *http.Request) error {
				if r.Context().Value(caddyhttp.ErrorCtxKey) == nil {
					_, _ = io.CopyN(io.Discard, r.Body, read)
					return caddyhttp.Error(http.StatusBadGateway, io.EOF)
				}
				rest, err := io.ReadAll(r.Body)
				want := int64(10)
				if read > 0 {
					want = 0
				}
				check.That(t, err == nil && int64(len(rest)) == want && r.ContentLength == want && r.Header.Get("Content-Length") == fmt.Sprint(want),
					"%s: got %q, %v and the lengths %d and %v, want %d bytes", directive, rest, err, r.ContentLength, r.Header["Content-Length"], want)
				w.WriteHeader(http.StatusTeapot)
				return nil
			}
			w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "http://example.com/", strings.NewReader("password=x"))
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			s.ServeHTTP(w, r)
			check.Equal(t, w.Code, http.StatusTeapot, "%s: the error route", directive)
		}
	}
}

// TestPlaceholderOfTheBody: a matcher that reads the body leaves it to the upstream, as without in_flight.
func TestPlaceholderOfTheBody(t *testing.T) {
	s := servertest.NewFuncSite(t, "in_flight php 9\nin_flight inner 9\nsettle_upstream")
	for _, size := range []int{10, 1 << 20} {
		sent := strings.Repeat("x", size)
		s.Serve = func(_ http.ResponseWriter, r *http.Request) error {
			for range 2 {
				got, _ := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer).GetString("http.request.body")
				check.That(t, got == sent, "placeholder: got %d bytes, want %d", len(got), size)
			}
			got, err := io.ReadAll(r.Body)
			check.That(t, err == nil && string(got) == sent, "upstream: got %d bytes, %v, want %d", len(got), err, size)
			return nil
		}
		s.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "http://example.com/", strings.NewReader(sent)))
	}
}

// TestPlaceholdersOfTheRequest: they say what handlers within have made of it, as without in_flight.
func TestPlaceholdersOfTheRequest(t *testing.T) {
	s := servertest.NewFuncSite(t, "in_flight php 9\nin_flight inner 9\nmethod PUT\nrequest_header Host new.example\nsettle_upstream")
	s.Serve = func(_ http.ResponseWriter, r *http.Request) error {
		repl := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
		check.Equal(t, repl.ReplaceAll("{http.request.method} {http.request.host}", ""), "PUT new.example")
		return nil
	}
	s.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "http://example.com/", nil))
}

// What stands after errorRoute in the directives of newErrorSite is in its error route.
const errorRoute = "\nsettle_upstream\n}\nhandle_errors {\nroute {\n"

// newErrorSite is a site whose upstream fails, and works on an error page for a second.
func newErrorSite(t testing.TB, directives string) *servertest.FuncSite {
	t.Helper()
	s := servertest.NewWaitSite(t, directives, 0)
	s.Serve = func(w http.ResponseWriter, r *http.Request) error {
		if r.Context().Value(caddyhttp.ErrorCtxKey) == nil {
			return caddyhttp.Error(http.StatusNotFound, errors.New("missing"))
		}
		<-time.After(time.Second)
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

// TestErrorRoutes: they never queue. Without its page, an error is its status: nobody knows whether it helps to
// come back, which the page of a refusal would say.
func TestErrorRoutes(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := newErrorSite(t, errorRoute+"in_flight php 1 {\nwait 1m\n}")
		first, second := s.Visit(client(1), "/"), s.Come(long(client(2), "/", 100<<10))
		if second.Code != http.StatusNotFound || !second.Ended || second.Header().Get("Retry-After") != "" || second.Body.Len() > 0 {
			t.Errorf("got %d %q, ended %v, want 404 alone", second.Code, second.Body, second.Ended)
		}
		servertest.Sleep(time.Minute)
		check.That(t, first.Code == http.StatusNotFound && first.Body.Len() == 0, "got %d %q, want the upstream's page", first.Code, first.Body)
		wantIdle(t, s)
	})
}
