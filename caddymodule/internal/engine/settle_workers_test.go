package engine_test

import (
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/engine"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/stores"
)

// workersOf returns how many requests the meter of a zone finds running.
func workersOf(t testing.TB, zone string) int {
	t.Helper()
	z := engine.JoinState(zone)
	defer func() {
		if err := stores.Leave(engine.StateKey(zone)); err != nil {
			t.Error(err)
		}
	}()
	return z.Meter.Running()
}

// wantNobodyRunning checks that nothing of a request that is over is left.
func wantNobodyRunning(t testing.TB, zone string) {
	t.Helper()
	if n := workersOf(t, zone); n != 0 {
		t.Errorf("zone %s: got %d running, want none", zone, n)
	}
}

// pool is an upstream whose workers take as long for each page. Requests queue for a
// worker.
func pool(workers int, page time.Duration) (serve func(http.ResponseWriter, *http.Request) error, served *atomic.Int64) {
	slots := make(chan struct{}, workers)
	served = new(atomic.Int64)
	return func(w http.ResponseWriter, r *http.Request) error {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return err
		}
		slots <- struct{}{}
		time.Sleep(page)
		<-slots
		served.Add(1)
		return nil
	}, served
}

// TestPoliteClientsDoNotPayForWaitingBehindOthers is the trial on real sites: 30
// addresses in 30 networks with two requests each, at five workers that take 0.38
// seconds for a page, and a polite client with a page a second.
func TestPoliteClientsDoNotPayForWaitingBehindOthers(t *testing.T) {
	const workers, pages, reserved = 5, 64, 0.2
	for _, test := range []struct {
		settle      string
		fair, after bool
	}{
		{"settle seconds", false, false},
		{"settle seconds 5", true, false},
		{"settle seconds after", false, true},
		{"settle seconds 5 after", true, true},
		{"settle seconds 5\nin_flight 100", true, false},
	} {
		servertest.InBubble(t, func(t *testing.T) {
			s := servertest.NewFuncSite(t, `throttle {
				zone workers {
					limit 30 1/s
					cost 0.2
					`+test.settle+`
				}
			}
			settle_upstream`)
			var served *atomic.Int64
			s.Serve, served = pool(workers, 380*time.Millisecond)
			began := time.Now()
			ask := func(addr string) int {
				r := httptest.NewRequest(http.MethodGet, "http://example.com/", nil)
				r.RemoteAddr = addr + ":1"
				w := httptest.NewRecorder()
				s.ServeHTTP(w, r)
				return w.Code
			}
			var all sync.WaitGroup
			stop := make(chan struct{})
			for network := range 30 {
				for range 2 {
					all.Go(func() {
						for {
							select {
							case <-stop:
								return
							default:
							}
							if ask(fmt.Sprintf("10.%d.0.1", network)) != http.StatusOK {
								<-time.After(time.Second)
							}
						}
					})
				}
			}
			<-time.After(5 * time.Second) // the queue is there
			var refused atomic.Int64
			for range pages {
				all.Go(func() {
					if ask("192.0.2.1") != http.StatusOK {
						refused.Add(1)
					}
				})
				<-time.After(time.Second)
			}
			close(stop)
			all.Wait()
			s.Wait()
			t.Logf("%q: %d of %d polite pages refused", test.settle, refused.Load(), pages)
			if test.fair != (refused.Load() == 0) {
				t.Errorf("%q: got %d of %d polite pages refused", test.settle, refused.Load(), pages)
			}
			if !test.fair {
				return
			}
			_, charged := s.Store.Sum()
			if !test.after {
				charged += reserved * float64(served.Load())
			}
			wall := time.Since(began).Seconds()
			if charged > workers*wall*(1+1e-9) || charged < workers*wall*0.9 {
				t.Errorf("%q: got %v charged in %v seconds of %d workers, want nearly all of their time", test.settle, charged, wall, workers)
			}
			wantNobodyRunning(t, "workers")
		})
	}
}

// charges sends n requests at once to an upstream that takes ten seconds for each, and
// returns how full the bucket of one of the clients is after that.
func charges(s *servertest.FuncSite, n int, zone string, shadow bool) float64 {
	s.Helper()
	for i := range n {
		s.Visit(fmt.Sprintf("192.0.2.%d", i+1), "/")
	}
	servertest.Sleep(time.Minute)
	return s.Level(zone, shadow)
}

func TestSharesHoldInEveryZone(t *testing.T) {
	for _, test := range []struct {
		name, options string
		shadow        bool
		want          float64
	}{
		{"reserved", "settle seconds 5", false, 5},
		{"after", "settle seconds 5 after", false, 5},
		{"in shadow", "settle seconds 5\nshadow", true, 5},
		{"in shadow, after", "settle seconds 5 after\nshadow", true, 5},
		{"in flight", "settle seconds 5\nin_flight 3", false, 5},
		{"others are unlimited", "settle seconds 5\noverride 192.0.2.2 unlimited\noverride 192.0.2.3 unlimited", false, 5},
		{"others have no key", "settle seconds 5\nkey client_ip header X-None missing skip", false, 0},
		{"others are not of the zone", "settle seconds 5\nexempt {\nnot remote_ip 192.0.2.1\n}", false, 10},
		{"plain", "settle seconds", false, 10},
	} {
		servertest.InBubble(t, func(t *testing.T) {
			s := servertest.NewWaitSite(t, "throttle {\nzone settled {\nlimit 1000 1/d\n"+test.options+"\n}\n}", 10*time.Second)
			if got := charges(s, 10, "settled", test.shadow); math.Abs(got-test.want) > 0.01 {
				t.Errorf("%s: got %v, want %v", test.name, got, test.want)
			}
			wantNobodyRunning(t, "settled")
		})
	}
}

// TestRequestsThatAShadowWouldRefuseTakeTheirShare, since they keep workers busy.
func TestRequestsThatAShadowWouldRefuseTakeTheirShare(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := servertest.NewWaitSite(t, "throttle {\nzone settled {\nlimit 1000 1/d\nsettle seconds 1\noverride 192.0.2.2 deny\nshadow\n}\n}", 10*time.Second)
		if got := charges(s, 2, "settled", true); math.Abs(got-5) > 0.01 {
			t.Errorf("got %v, want 5", got)
		}
	})
}

func TestSlowClientsMakeNobodysShareSmaller(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := servertest.NewFuncZone(t, "settle seconds 1")
		s.Serve = func(w http.ResponseWriter, r *http.Request) error {
			if _, err := io.Copy(io.Discard, r.Body); err != nil {
				return err
			}
			<-time.After(10 * time.Second)
			return nil
		}
		var stalled []*io.PipeWriter
		for i := range 20 {
			reader, writer := io.Pipe()
			stalled = append(stalled, writer)
			r := httptest.NewRequest(http.MethodPost, "http://example.com/", reader)
			r.RemoteAddr = fmt.Sprintf("10.0.0.%d:1", i)
			s.Come(r)
		}
		s.Visit(s.Client, "/")
		servertest.Sleep(time.Minute)
		for _, writer := range stalled {
			writer.CloseWithError(io.ErrUnexpectedEOF)
		}
		s.WantLevel("settled", 10)
		wantNobodyRunning(t, "settled")
	})
}

// TestAShareIsTheUpstreamsTimeOnly: the queue of a handler within is none of it.
func TestAShareIsTheUpstreamsTimeOnly(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := servertest.NewWaitSite(t, `throttle {
			zone settled {
				limit 1000 1/d
				settle seconds 5
			}
		}
		throttle {
			zone slot {
				key host
				in_flight 1 wait 1m
			}
		}`, 10*time.Second)
		if got := charges(s, 3, "settled", false); math.Abs(got-10) > 0.01 {
			t.Errorf("first: got %v, want 10", got)
		}
		s.Client = "192.0.2.3"
		s.WantLevel("settled", 10)
		servertest.WantEmpty(t, "slot")
	})
}

// TestAZoneOfTwoHandlersCountsARequestOnce, also where nobody is charged.
func TestAZoneOfTwoHandlersCountsARequestOnce(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		handler := "throttle {\nzone settled {\nlimit 1000 1/d\nsettle seconds 1\noverride 192.0.2.2 unlimited\n}\n}\n"
		s := servertest.NewWaitSite(t, handler+handler, 10*time.Second)
		if got := charges(s, 2, "settled", false); math.Abs(got-5) > 0.01 {
			t.Errorf("got %v, want 5", got)
		}
	})
}

// TestAReloadChangesTheWorkersAndNothingElse: requests of both configs share them.
func TestAReloadChangesTheWorkersAndNothingElse(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		sites := [2]*servertest.FuncSite{}
		for i, workers := range []string{"1", "2"} {
			sites[i] = servertest.NewWaitSite(t, "throttle {\nzone settled {\nlimit 1000 1/d\nsettle seconds "+workers+"\n}\n}", 10*time.Second)
		}
		sites[0].Visits(4, "192.0.2.1", "/")
		servertest.Sleep(5 * time.Second) // 4 * 5 / 4 seconds
		sites[1].Visits(4, "192.0.2.2", "/")
		servertest.Sleep(time.Minute) // 4 * 5 * 2 / 8 seconds each, then 4 * 5 * 2 / 4 for the later ones
		sites[0].Client, sites[1].Client = "192.0.2.1", "192.0.2.2"
		sites[0].WantLevel("settled", 10)
		sites[1].WantLevel("settled", 15)
		wantNobodyRunning(t, "settled")
	})
}

// TestSharesEndWithTheirRequests, however those end.
func TestSharesEndWithTheirRequests(t *testing.T) {
	for _, test := range []struct {
		name      string
		serve     func(w http.ResponseWriter, r *http.Request) error
		want      float64
		unsettled float64
	}{
		{"a tunnel", func(w http.ResponseWriter, _ *http.Request) error {
			w.WriteHeader(http.StatusSwitchingProtocols)
			<-time.After(time.Hour)
			return nil
		}, 1, 1},
		{"a panic after headers", func(w http.ResponseWriter, _ *http.Request) error {
			<-time.After(3 * time.Second)
			w.WriteHeader(http.StatusOK)
			panic(http.ErrAbortHandler)
		}, 3, 0},
		{"an upstream that is down", func(http.ResponseWriter, *http.Request) error {
			return caddyhttp.Error(http.StatusBadGateway, io.ErrUnexpectedEOF)
		}, 1, 0},
		{"an upstream that breaks off late", func(http.ResponseWriter, *http.Request) error {
			<-time.After(3 * time.Second)
			return caddyhttp.Error(http.StatusBadGateway, io.ErrUnexpectedEOF)
		}, 3, 0},
	} {
		servertest.InBubble(t, func(t *testing.T) {
			s := servertest.NewFuncZone(t, "settle seconds 5")
			s.Serve = test.serve
			s.Visit(s.Client, "/", "Upgrade", "websocket")
			servertest.Sleep(2 * time.Hour)
			if got := s.Level("settled", false); math.Abs(got-max(0, test.want-2.0/24)) > 0.1 {
				t.Errorf("%s: got %v, want %v less what has leaked", test.name, got, test.want)
			}
			if got := s.Unsettled("settled"); got != test.unsettled {
				t.Errorf("%s: got %v unsettled, want %v", test.name, got, test.unsettled)
			}
			wantNobodyRunning(t, "settled")
		})
	}
}

// TestAClientThatLeavesPaysItsShare, and never less than was reserved.
func TestAClientThatLeavesPaysItsShare(t *testing.T) {
	for _, test := range []struct{ stays, want float64 }{{0.25, 1}, {4, 4}} {
		servertest.InBubble(t, func(t *testing.T) {
			s := servertest.NewWaitSite(t, "throttle {\nzone settled {\nlimit 1000 1/d\nsettle seconds 5\n}\n}", time.Minute)
			v := s.Visit(s.Client, "/")
			servertest.Sleep(time.Duration(test.stays * float64(time.Second)))
			v.Leave()
			servertest.Quiet()
			s.WantLevel("settled", test.want)
			wantNobodyRunning(t, "settled")
		})
	}
}

// TestAProxySharesWhatItsUpstreamWorks runs over sockets, with a body that the proxy
// sends beside waiting for the answer.
func TestAProxySharesWhatItsUpstreamWorks(t *testing.T) {
	var working atomic.Int64
	release := make(chan struct{})
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		working.Add(1)
		<-release
		working.Add(-1)
	}))
	defer upstream.Close()
	addr := servertest.FreeAddress(t)
	servertest.MustLoad(t, fmt.Sprintf(`{
		auto_https off
	}
	http://%s {
		throttle {
			zone shared {
				limit 1000 1/d
				settle seconds 5
			}
		}
		reverse_proxy %s
	}`, addr, upstream.Listener.Addr()))

	stalled, err := net.Dial("tcp", "127.0.0.1"+addr)
	if err != nil {
		t.Fatal(err)
	}
	defer stalled.Close()
	fmt.Fprint(stalled, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nx")
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			method, body := http.MethodGet, io.Reader(nil)
			if i%2 == 0 {
				method, body = http.MethodPost, strings.NewReader(strings.Repeat("x", 100_000))
			}
			req, err := http.NewRequestWithContext(context.Background(), method, "http://127.0.0.1"+addr, body)
			if err != nil {
				t.Error(err)
				return
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Error(err)
				return
			}
			resp.Body.Close()
		})
	}
	servertest.Soon(t, "the 4 requests that the upstream works on", func() bool { return working.Load() == 4 && workersOf(t, "shared") == 4 })
	close(release)
	all.Wait()
	servertest.Soon(t, "the end of all requests", func() bool { return workersOf(t, "shared") == 0 })
}
