package detached

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
)

// visit calls a handler for a client that leaves after so long. It returns when the
// handler has.
func visit(w http.ResponseWriter, leaves time.Duration, exiting <-chan struct{}, serve func(http.ResponseWriter, *http.Request) error) error {
	ctx, leave := context.WithTimeout(context.Background(), leaves)
	defer leave()
	r := httptest.NewRequest(http.MethodGet, "/", nil).WithContext(ctx)
	return Serve(w, r, caddyhttp.HandlerFunc(serve), ignored, exiting)
}

// aborted calls serve, and reports whether it panics with http.ErrAbortHandler.
func aborted(serve func() error) (was bool, err error) {
	defer func() {
		if panicked := recover(); panicked != nil && panicked != http.ErrAbortHandler {
			panic(panicked)
		} else {
			was = panicked != nil
		}
	}()
	return false, serve()
}

// until returns after how long the context of a request is over.
func until(r *http.Request) time.Duration {
	began := time.Now()
	select {
	case <-r.Context().Done():
	case <-time.After(time.Hour):
	}
	return time.Since(began)
}

func TestACallGoesOnWhenItsClientLeavesUntilNobodyCanWantIt(t *testing.T) {
	for name, test := range map[string]struct {
		header http.Header // of an answer after two seconds
		want   time.Duration
	}{
		"no answer":         {nil, time.Second + Patience},
		"document":          {http.Header{"Content-Type": {"text/html"}}, time.Second + Patience},
		"stream":            {http.Header{"Content-Type": {"text/event-stream; charset=utf-8"}}, 2 * time.Second},
		"gRPC":              {http.Header{"Content-Type": {"application/grpc+proto"}}, 2 * time.Second},
		"Connect":           {http.Header{"Content-Type": {"application/connect+json"}}, 2 * time.Second},
		"moving picture":    {http.Header{"Content-Type": {"multipart/x-mixed-replace; boundary=x"}}, 2 * time.Second},
		"no type, no limit": {http.Header{}, time.Second + Patience},
	} {
		synctest.Test(t, func(t *testing.T) {
			var got time.Duration
			began := time.Now()
			err := visit(httptest.NewRecorder(), time.Second, nil, func(w http.ResponseWriter, r *http.Request) error {
				defer context.AfterFunc(r.Context(), func() {})() // as a proxy watches its client
				if _, limited := r.Context().Deadline(); limited {
					t.Errorf("%s: got the client's deadline, want none", name)
				}
				if test.header != nil {
					time.Sleep(2 * time.Second)
					for key, values := range test.header {
						w.Header()[key] = values
					}
					w.WriteHeader(http.StatusOK)
				}
				until(r)
				got = time.Since(began)
				return nil
			})
			if err != nil || got != test.want {
				t.Errorf("%s: got it over after %v, %v, want %v", name, got, err, test.want)
			}
		})
	}
}

func TestAStreamEndsWithItsClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_ = visit(httptest.NewRecorder(), time.Second, nil, func(w http.ResponseWriter, r *http.Request) error {
			w.Header().Set("Content-Type", "text/event-stream")
			w.WriteHeader(http.StatusOK)
			if got := until(r); got != time.Second {
				t.Errorf("got it over after %v, want a second", got)
			}
			return nil
		})
	})
}

func TestACallWithoutAClientEndsWithTheProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		exiting := make(chan struct{})
		time.AfterFunc(time.Minute, func() { close(exiting) })
		_ = visit(httptest.NewRecorder(), time.Second, exiting, func(_ http.ResponseWriter, r *http.Request) error {
			if got := until(r); got != time.Minute {
				t.Errorf("got it over after %v, want a minute", got)
			}
			return nil
		})
		_ = visit(httptest.NewRecorder(), 2*time.Minute, exiting, func(_ http.ResponseWriter, r *http.Request) error {
			if got := until(r); got != 2*time.Minute {
				t.Errorf("got it over after %v, want with its client: a process that ends waits for those", got)
			}
			return nil
		})
	})
}

func TestAHandlersErrorAndPanicGetThrough(t *testing.T) {
	broken := errors.New("broken")
	if err := visit(httptest.NewRecorder(), time.Second, nil, func(http.ResponseWriter, *http.Request) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("got %v, want the handler's error", err)
	}
	defer func() {
		if recover() != http.ErrAbortHandler {
			t.Error("got no panic, want the handler's")
		}
	}()
	_ = visit(httptest.NewRecorder(), time.Second, nil, func(http.ResponseWriter, *http.Request) error { panic(http.ErrAbortHandler) })
}

// A slowConn takes bytes as slowly as a client reads them.
type slowConn struct {
	http.ResponseWriter
	mu       sync.Mutex
	second   int // bytes in a second; 0: none
	fails    bool
	deadline time.Time
	changed  chan struct{} // closed with each deadline that is set
	set      []time.Time
	took     int
	hijacked bool
}

func (c *slowConn) SetWriteDeadline(at time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadline, c.set = at, append(c.set, at)
	if c.changed != nil {
		close(c.changed)
		c.changed = nil
	}
	return nil
}

func (c *slowConn) Write(p []byte) (int, error) {
	if c.fails {
		return 0, net.ErrClosed
	}
	needs := time.Hour
	if c.second > 0 {
		needs = time.Duration(float64(len(p)) / float64(c.second) * float64(time.Second))
	}
	for done := time.Now().Add(needs); ; {
		c.mu.Lock()
		if c.changed == nil {
			c.changed = make(chan struct{})
		}
		end, changed := c.deadline, c.changed
		c.mu.Unlock()
		late := !end.IsZero() && end.Before(done)
		if !late {
			end = done
		}
		select {
		case <-changed:
			continue
		case <-time.After(time.Until(end)):
		}
		if late {
			return 0, os.ErrDeadlineExceeded
		}
		c.took += len(p)
		return len(p), nil
	}
}

func (c *slowConn) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c.hijacked = true
	return nil, nil, nil
}

func TestAClientThatReadsTooSlowlyIsCutAndTheUpstreamReadOn(t *testing.T) {
	for _, test := range []struct {
		second int
		takes  int
		atMost time.Duration
	}{
		{1 << 20, 100 << 10, time.Second},
		{2 << 10, 100 << 10, 51 * time.Second},
		{500, 0, 15 * time.Second},
		{0, 0, 15 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			conn := &slowConn{ResponseWriter: httptest.NewRecorder(), second: test.second}
			read, began := int64(0), time.Now()
			cut, err := aborted(func() error {
				return visit(conn, time.Hour, nil, func(w http.ResponseWriter, _ *http.Request) (err error) {
					read, err = io.Copy(w, strings.NewReader(strings.Repeat("x", 100<<10)))
					return err
				})
			})
			if err != nil || read != 100<<10 {
				t.Errorf("%d bytes a second: got %d bytes read, %v, want all", test.second, read, err)
			}
			if want := test.takes < 100<<10; cut != want {
				t.Errorf("%d bytes a second: got it aborted: %v, want %v", test.second, cut, want)
			}
			if took := time.Since(began); conn.took != test.takes || took > test.atMost {
				t.Errorf("%d bytes a second: got %d sent within %v, want %d within %v", test.second, conn.took, took, test.takes, test.atMost)
			}
			if test.takes > 0 && len(conn.set) > 0 {
				t.Errorf("%d bytes a second: got the deadlines %v, want none", test.second, conn.set)
			}
		})
	}
}

func TestTheServersOwnWriteTimeoutHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := &slowConn{ResponseWriter: httptest.NewRecorder(), second: 2 << 10}
		began := time.Now()
		conn.deadline = began.Add(20 * time.Second)
		if cut, _ := aborted(func() error {
			return Serve(conn, get(t), caddyhttp.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) error {
				_, err := w.Write(make([]byte, 100<<10))
				return err
			}), ignored, nil)
		}); !cut {
			t.Error("got a part of the answer as if it were all, want it aborted")
		}
		if took := time.Since(began); took != 20*time.Second || conn.took != 32<<10 {
			t.Errorf("got %d bytes sent within %v, want 32 KiB within 20s", conn.took, took)
		}
	})
}

// Caddy's timeouts within throttle set a deadline before each write. No write waits while
// the answer waits in memory.
func TestAHandlersOwnDeadlineIsNotThatOfAnAnswerInMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := &slowConn{ResponseWriter: httptest.NewRecorder(), second: 2 << 10}
		if err := Serve(conn, get(t), caddyhttp.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) error {
			for range 10 {
				if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(3 * time.Second)); err != nil {
					t.Error(err)
				}
				if _, err := w.Write(make([]byte, 10<<10)); err != nil {
					t.Error(err)
				}
				time.Sleep(time.Second)
			}
			return nil
		}), ignored, nil); err != nil || conn.took != 100<<10 {
			t.Errorf("got %d bytes, %v, want all at our pace", conn.took, err)
		}
	})
}

// With Caddy's timeouts around throttle, the earlier of both deadlines holds.
func TestTimeoutsAroundACallHold(t *testing.T) {
	for timeout, want := range map[time.Duration]time.Duration{3 * time.Second: 3 * time.Second, time.Hour: slowest} {
		synctest.Test(t, func(t *testing.T) {
			conn, began := &slowConn{ResponseWriter: httptest.NewRecorder()}, time.Now()
			w := &caddyhttp.IdleTimeoutWriter{
				ResponseWriterWrapper: &caddyhttp.ResponseWriterWrapper{ResponseWriter: conn}, Ctrl: http.NewResponseController(conn),
				Deadline: caddyhttp.IdleDeadline{Start: began, Timeout: timeout}, Logger: zap.NewNop(),
			}
			cut, _ := aborted(func() error { return Serve(w, get(t), send(100<<10), ignored, nil) })
			if took := time.Since(began); !cut || took != want {
				t.Errorf("%v: got a client that reads nothing cut: %v, after %v, want after %v", timeout, cut, took, want)
			}
		})
	}
}

// A stream is written by the handler itself, so that the earlier deadline holds.
func TestAHandlersOwnDeadlineHoldsForAStream(t *testing.T) {
	for _, test := range []struct{ asked, want time.Duration }{
		{3 * time.Second, 3 * time.Second},
		{time.Hour, slowest},
		{0, slowest},
	} {
		synctest.Test(t, func(t *testing.T) {
			conn, began := &slowConn{ResponseWriter: httptest.NewRecorder()}, time.Now()
			_, _ = aborted(func() error {
				return Serve(conn, get(t), caddyhttp.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) error {
					w.Header().Set("Content-Type", "text/event-stream")
					w.WriteHeader(http.StatusOK)
					var at time.Time
					if test.asked > 0 {
						at = time.Now().Add(test.asked)
					}
					if err := http.NewResponseController(w).SetWriteDeadline(at); err != nil {
						t.Error(err)
					}
					_, err := w.Write([]byte("data: x\n\n"))
					return err
				}), ignored, nil)
			})
			if took := time.Since(began); took != test.want {
				t.Errorf("%v: got the stream cut after %v, want %v", test.asked, took, test.want)
			}
		})
	}
}

func TestWhatNobodyReadsIsThrownAway(t *testing.T) {
	conn := &slowConn{ResponseWriter: httptest.NewRecorder(), fails: true}
	cut, err := aborted(func() error {
		return visit(conn, time.Hour, nil, func(w http.ResponseWriter, r *http.Request) error {
			for range 3 {
				if n, err := w.Write([]byte("hello")); n != 5 || err != nil {
					t.Errorf("got %d, %v, want that it seems to be sent", n, err)
				}
			}
			if err := http.NewResponseController(w).Flush(); err != nil {
				t.Errorf("flushing: got %v, want nothing", err)
			}
			return r.Context().Err()
		})
	})
	if err != nil || !cut {
		t.Errorf("got %v, aborted: %v, want the call to go on and the answer aborted", err, cut)
	}
}

// Over HTTP/3 a client that is cut off has not left.
func TestACallWhoseClientIsCutOffEndsLikeOneWithout(t *testing.T) {
	for name, test := range map[string]struct {
		exits, ends time.Duration
	}{
		"patience": {time.Hour, 15*time.Second + Patience},
		"exit":     {time.Minute, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				exiting := make(chan struct{})
				time.AfterFunc(test.exits, func() { close(exiting) })
				conn := &slowConn{ResponseWriter: httptest.NewRecorder()}
				if err := visit(conn, 2*time.Hour, exiting, func(w http.ResponseWriter, r *http.Request) error {
					_, _ = w.Write(make([]byte, 8<<10))
					if got := until(r); got != test.ends {
						t.Errorf("got it over after %v, want %v", got, test.ends)
					}
					return r.Context().Err()
				}); !errors.Is(err, context.Canceled) {
					t.Errorf("got %v, want it canceled", err)
				}
				time.Sleep(2 * time.Hour) // virtual; the exit comes
			})
		})
	}
}

// A client that has left needs no sign that its answer is not complete.
func TestAnAnswerWhoseClientHasLeftIsNotAborted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := &slowConn{ResponseWriter: httptest.NewRecorder(), fails: true}
		if err := visit(conn, time.Second, nil, func(w http.ResponseWriter, _ *http.Request) error {
			time.Sleep(2 * time.Second)
			_, err := w.Write([]byte("hello"))
			return err
		}); err != nil {
			t.Errorf("got %v, want it thrown away", err)
		}
	})
}

func TestAStreamThatNobodyReadsEnds(t *testing.T) {
	conn := &slowConn{ResponseWriter: httptest.NewRecorder(), fails: true}
	if err := visit(conn, time.Hour, nil, func(w http.ResponseWriter, r *http.Request) error {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = w.Write([]byte("data: x"))
		return r.Context().Err()
	}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want it canceled", err)
	}
}

func TestATunnelBelongsToWhoeverTookIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := &slowConn{ResponseWriter: httptest.NewRecorder(), second: 1 << 20}
		_ = visit(conn, time.Minute, nil, func(w http.ResponseWriter, r *http.Request) error {
			_, _ = w.Write([]byte("first"))
			if _, _, err := http.NewResponseController(w).Hijack(); err != nil || !conn.hijacked {
				t.Errorf("got %v, want the connection", err)
			}
			if len(conn.set) > 0 {
				t.Errorf("got the deadlines %v, want none", conn.set)
			}
			if got := until(r).Round(time.Second); got != time.Minute {
				t.Errorf("got it over after %v, want with its client", got)
			}
			return nil
		})
	})
}

// pipes are a listener whose connections are in memory.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	if conn, ok := <-p; ok {
		return conn, nil
	}
	return nil, net.ErrClosed
}

func (p pipes) Close() error {
	close(p)
	return nil
}

func (pipes) Addr() net.Addr { return &net.TCPAddr{} }

func TestAnUpstreamMayPauseForLongOverHTTP2(t *testing.T) {
	for _, contentType := range []string{"text/csv", "text/event-stream"} {
		synctest.Test(t, func(t *testing.T) {
			listener, only2 := make(pipes), new(http.Protocols)
			only2.SetUnencryptedHTTP2(true)
			server := &http.Server{Protocols: only2, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_ = Serve(w, r, caddyhttp.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) error {
					w.Header().Set("Content-Type", contentType)
					for _, text := range []string{"one ", "two ", "three"} {
						_, _ = io.WriteString(w, text)
						_ = http.NewResponseController(w).Flush()
						time.Sleep(2 * slowest)
					}
					return nil
				}), ignored, nil)
			})}
			served := make(chan error)
			go func() { served <- server.Serve(listener) }()
			transport := &http.Transport{Protocols: only2, DialContext: func(context.Context, string, string) (net.Conn, error) {
				client, accepted := net.Pipe()
				listener <- accepted
				return client, nil
			}}
			answer, err := transport.RoundTrip(httptest.NewRequest(http.MethodGet, "http://site.example/", nil))
			if err != nil {
				t.Fatal(err)
			}
			if body, err := io.ReadAll(answer.Body); string(body) != "one two three" || err != nil || answer.ProtoMajor != 2 {
				t.Errorf("%s: got %q, %v over %s, want all of it over HTTP/2", contentType, body, err, answer.Proto)
			}
			transport.CloseIdleConnections()
			_ = server.Close()
			<-served
		})
	}
}

// A call's end is noted by over.
type over struct{ atomic.Bool }

func (o *over) served(error) { o.Store(true) }

// ignored is told of the end in tests that do not ask.
func ignored(error) {}
