package call

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

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/body"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// with returns the options of a call in a test, whose store must be empty when that ends.
func with(t *testing.T, o Options) Options {
	t.Helper()
	if o.Store == nil {
		o.Store = newStore(t, body.Bounds{})
	}
	if o.Served == nil {
		o.Served = ignored
	}
	return o
}

func newStore(t *testing.T, b body.Bounds) *body.Store {
	t.Helper()
	s := body.NewStore(t.TempDir(), func(err error) { t.Error(err) })
	s.SetBounds(b)
	t.Cleanup(func() {
		memory, file := s.Held()
		check.That(t, memory == 0 && file == 0, "got %d bytes of memory and %d of the file left behind, want none", memory, file)
	})
	return s
}

func visit(t *testing.T, w http.ResponseWriter, leaves time.Duration, exiting <-chan struct{}, serve func(http.ResponseWriter, *http.Request) error) error {
	ctx, leave := context.WithTimeout(context.Background(), leaves)
	defer leave()
	r := httptest.NewRequest(http.MethodGet, "/", nil).WithContext(ctx)
	defer func() { // also after a panic
		got := r.Context()
		check.That(t, got != ctx, "want r left alone: an upstream's client may still read it")
		check.That(t, got.Done() == ctx.Done() && got.Err() == ctx.Err(), "want r to end with its client again")
	}()
	return Serve(w, r, caddyhttp.HandlerFunc(serve), with(t, Options{Exiting: exiting}))
}

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
			err := visit(t, httptest.NewRecorder(), time.Second, nil, func(w http.ResponseWriter, r *http.Request) error {
				defer context.AfterFunc(r.Context(), func() {})() // as a proxy watches its client
				_, limited := r.Context().Deadline()
				check.That(t, !limited, "%s: got the client's deadline, want none", name)
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
			check.That(t, err == nil && got == test.want, "%s: got it over after %v, %v, want %v", name, got, err, test.want)
		})
	}
}

func TestACallWithoutAClientEndsWithTheProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		exiting := make(chan struct{})
		time.AfterFunc(time.Minute, func() { close(exiting) })
		_ = visit(t, httptest.NewRecorder(), time.Second, exiting, func(_ http.ResponseWriter, r *http.Request) error {
			check.Equal(t, until(r), time.Minute, "the time until it is over, want a minute")
			return nil
		})
		_ = visit(t, httptest.NewRecorder(), 2*time.Minute, exiting, func(_ http.ResponseWriter, r *http.Request) error {
			check.Equal(t, until(r), 2*time.Minute, "the time until it is over, want with its client: a process that ends waits for those")
			return nil
		})
	})
}

func TestAHandlersErrorAndPanicGetThrough(t *testing.T) {
	broken := errors.New("broken")
	check.Is(t, visit(t, httptest.NewRecorder(), time.Second, nil, func(http.ResponseWriter, *http.Request) error { return broken }), broken, "want the handler's error")
	defer func() {
		check.Equal[any](t, recover(), http.ErrAbortHandler, "no panic, want the handler's")
	}()
	_ = visit(t, httptest.NewRecorder(), time.Second, nil, func(http.ResponseWriter, *http.Request) error { panic(http.ErrAbortHandler) })
}

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

func (c *slowConn) Unwrap() http.ResponseWriter { return c.ResponseWriter }

func (c *slowConn) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c.hijacked = true
	return nil, nil, nil
}

func TestTheServersOwnWriteTimeoutHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := &slowConn{ResponseWriter: httptest.NewRecorder(), second: 2 << 10}
		began := time.Now()
		conn.deadline = began.Add(20 * time.Second)
		cut, _ := aborted(func() error {
			return Serve(conn, get(t), caddyhttp.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) error {
				_, err := w.Write(make([]byte, 100<<10))
				return err
			}), with(t, Options{}))
		})
		check.That(t, cut, "got a part of the answer as if it were all, want it aborted")
		took := time.Since(began)
		check.That(t, took == 20*time.Second && conn.took == 32<<10, "got %d bytes sent within %v, want one piece of 32 KiB within 20s", conn.took, took)
	})
}

func TestAHandlersOwnDeadlineIsNotThatOfAnAnswerInMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := &slowConn{ResponseWriter: httptest.NewRecorder(), second: 2 << 10}
		err := Serve(conn, get(t), caddyhttp.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) error {
			for range 10 {
				check.NoError(t, http.NewResponseController(w).SetWriteDeadline(time.Now().Add(3*time.Second)))
				_, err := w.Write(make([]byte, 10<<10))
				check.NoError(t, err)
				time.Sleep(time.Second)
			}
			return nil
		}), with(t, Options{}))
		check.That(t, err == nil && conn.took == 100<<10, "got %d bytes, %v, want all at our pace", conn.took, err)
	})
}

// TestCaddysTimeouts around a call end a client that reads nothing. Those within do not see the
// server's writer, which they would change while it is being written to.
func TestCaddysTimeouts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, began := &slowConn{ResponseWriter: httptest.NewRecorder()}, time.Now()
		writer := &caddyhttp.IdleTimeoutWriter{
			ResponseWriterWrapper: &caddyhttp.ResponseWriterWrapper{ResponseWriter: conn}, Ctrl: http.NewResponseController(conn),
			Deadline: caddyhttp.IdleDeadline{Start: began, Timeout: time.Minute}, Logger: zap.NewNop(),
		}
		reader, r := new(caddyhttp.IdleTimeoutReader), get(t)
		r = r.WithContext(caddyhttp.ContextWithIdleTimeouts(r.Context(), reader, writer))
		cut, _ := aborted(func() error {
			return Serve(writer, r, caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
				gotReader, gotWriter := caddyhttp.IdleTimeoutsFromContext(r.Context())
				check.That(t, gotReader == reader && gotWriter == nil, "got %v and %v, want the reader alone", gotReader, gotWriter)
				return send(100<<10)(w, r)
			}), with(t, Options{}))
		})
		took := time.Since(began)
		check.That(t, cut && took == time.Minute, "got a client that reads nothing cut: %v, after %v, want after a minute", cut, took)
	})
}

func TestAHandlersOwnDeadlineHoldsForAStream(t *testing.T) {
	for _, test := range []struct{ asked, want time.Duration }{
		{3 * time.Second, 3 * time.Second},
		{0, time.Hour},
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
					check.NoError(t, http.NewResponseController(w).SetWriteDeadline(at))
					_, err := w.Write([]byte("data: x\n\n"))
					return err
				}), with(t, Options{}))
			})
			check.Equal(t, time.Since(began), test.want, "%v: the time until the stream is cut", test.asked)
		})
	}
}

func TestWhatNobodyReadsIsThrownAway(t *testing.T) {
	conn := &slowConn{ResponseWriter: httptest.NewRecorder(), fails: true}
	cut, err := aborted(func() error {
		return visit(t, conn, time.Hour, nil, func(w http.ResponseWriter, r *http.Request) error {
			for range 3 {
				n, err := w.Write([]byte("hello"))
				check.That(t, n == 5 && err == nil, "got %d, %v, want that it seems to be sent", n, err)
			}
			check.NoError(t, http.NewResponseController(w).Flush(), "flushing")
			return r.Context().Err()
		})
	})
	check.That(t, err == nil && cut, "got %v, aborted: %v, want the call to go on and the answer aborted", err, cut)
}

func TestACallWhoseClientIsCutOffEndsLikeOneWithout(t *testing.T) {
	for name, test := range map[string]struct{ exits, ends time.Duration }{
		"patience": {time.Hour, 15*time.Second + Patience},
		"exit":     {time.Minute, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				exiting, began := make(chan struct{}), time.Now()
				time.AfterFunc(test.exits, func() { close(exiting) })
				conn := &slowConn{ResponseWriter: httptest.NewRecorder(), deadline: began.Add(15 * time.Second)}
				err := visit(t, conn, 2*time.Hour, exiting, func(w http.ResponseWriter, r *http.Request) error {
					_, _ = w.Write(make([]byte, 8<<10))
					check.Equal(t, until(r), test.ends, "the time until it is over")
					return r.Context().Err()
				})
				check.That(t, errors.Is(err, context.Canceled), "got %v, want it canceled", err)
				time.Sleep(2 * time.Hour) // virtual; the exit comes
			})
		})
	}
}

func TestAnAnswerWhoseClientHasLeftIsNotAborted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := &slowConn{ResponseWriter: httptest.NewRecorder(), fails: true}
		err := visit(t, conn, time.Second, nil, func(w http.ResponseWriter, _ *http.Request) error {
			time.Sleep(2 * time.Second)
			_, err := w.Write([]byte("hello"))
			return err
		})
		check.That(t, err == nil, "got %v, want it thrown away", err)
	})
}

func TestAStreamThatNobodyReadsEnds(t *testing.T) {
	conn := &slowConn{ResponseWriter: httptest.NewRecorder(), fails: true}
	err := visit(t, conn, time.Hour, nil, func(w http.ResponseWriter, r *http.Request) error {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = w.Write([]byte("data: x"))
		return r.Context().Err()
	})
	check.That(t, errors.Is(err, context.Canceled), "got %v, want it canceled", err)
}

// TestATunnel gives its slot back at once, also that of a call around. It ends with its client.
func TestATunnel(t *testing.T) {
	for name, begin := range map[string]func(w http.ResponseWriter){
		"switching protocols": func(w http.ResponseWriter) { w.WriteHeader(http.StatusSwitchingProtocols) },
		"hijacked": func(w http.ResponseWriter) {
			_, _ = w.Write(make([]byte, 100<<10))
			_, _, err := http.NewResponseController(w).Hijack()
			check.NoError(t, err)
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			conn := &slowConn{ResponseWriter: httptest.NewRecorder(), second: 1 << 20}
			outer, inner := new(over), new(over)
			_ = visit(t, conn, time.Minute, nil, func(w http.ResponseWriter, r *http.Request) error {
				return Serve(w, r, caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
					return Serve(w, r, caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
						begin(w)
						check.That(t, inner.Load() && outer.Load(), "%s: got the slots given back: %v and %v, want both", name, inner.Load(), outer.Load())
						if conn.hijacked != (name == "hijacked") || name == "hijacked" && conn.took != 100<<10 {
							t.Errorf("%s: got it hijacked: %v, after %d bytes", name, conn.hijacked, conn.took)
						}
						check.Equal(t, until(r).Round(time.Second), time.Minute, "%s: the time until it is over, want with its client", name)
						return nil
					}), with(t, Options{Served: inner.served}))
				}), with(t, Options{Served: outer.served}))
			})
		})
	}
}

// TestAnExtendedConnect is a WebSocket over HTTP/2, whose status is 200, or the page of an upstream that
// knows none. What the client sends is for a tunnel: nothing waits for it before.
func TestAnExtendedConnect(t *testing.T) {
	for _, test := range []struct {
		upstream, status int
		want             bool
	}{{101, 200, true}, {200, 200, false}, {403, 403, false}} {
		o, repl := new(over), caddy.NewReplacer()
		r := httptest.NewRequest(http.MethodConnect, "/", strings.NewReader("hello")).WithContext(context.WithValue(t.Context(), caddy.ReplacerCtxKey, repl))
		r.ProtoMajor = 2
		sent := r.Body
		err := Serve(httptest.NewRecorder(), r, caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
			before := string(check.Must(io.ReadAll(r.Body))(t))
			repl.Set("http.reverse_proxy.status_code", test.upstream)
			w.WriteHeader(test.status)
			after := string(check.Must(io.ReadAll(r.Body))(t))
			check.That(t, o.Load() == test.want && before == "" && after == "hello", "%d: got the slot given back: %v, and the body %q before and %q after", test.upstream, o.Load(), before, after)
			return nil
		}), with(t, Options{Served: o.served}))
		check.That(t, err == nil && o.Load(), "%d: got %v, want the slot given back at the end", test.upstream, err)
		check.That(t, r.Body == sent, "%d: want the body left to an error route, which may tunnel, too", test.upstream)
	}
}

// A call's end is noted by over.
type over struct{ atomic.Bool }

func (o *over) served(error) { o.Store(true) }
