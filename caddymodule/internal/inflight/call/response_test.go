package call

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/body"
)

// send lets a handler answer with so many bytes.
func send(bytes int) caddyhttp.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) error {
		_, err := io.Copy(w, strings.NewReader(strings.Repeat("x", bytes)))
		return err
	}
}

func get(t *testing.T) *http.Request {
	return httptest.NewRequest(http.MethodGet, "/", nil).WithContext(t.Context())
}

// Two handlers with zones of their own serve one request.

// TestTheSlotIsFreeWhileTheClientReads what lies in memory and in the file.
func TestTheSlotIsFreeWhileTheClientReads(t *testing.T) {
	for _, bytes := range []int{300, unsent, unsent + 1, 300 << 10, inMemory, 5 << 20} {
		synctest.Test(t, func(t *testing.T) {
			conn, o := &slowConn{ResponseWriter: httptest.NewRecorder(), second: 2 << 10}, new(over)
			began, done := time.Now(), make(chan error)
			store := newStore(t, body.Bounds{})
			go func() { done <- Serve(conn, get(t), send(bytes), with(t, Options{Store: store, Served: o.served})) }()
			synctest.Wait()
			if memory, file := store.Held(); !o.Load() && bytes > unsent || memory > inMemory+64<<10 || (file > 0) != (bytes > inMemory) {
				t.Errorf("%d bytes: got the slot free: %v, with %d and %d held, want it free", bytes, o.Load(), memory, file)
			}
			err := <-done
			check.That(t, err == nil && conn.took == bytes, "%d bytes: got %d sent, %v, want all", bytes, conn.took, err)
			took, want := time.Since(began), time.Duration(bytes)*time.Second/(2<<10)
			check.That(t, took <= want+time.Second, "%d bytes: got all sent after %v, want %v", bytes, took, want)
		})
	}
}

// TestOutOfRoom the upstream goes at the client's pace.
func TestOutOfRoom(t *testing.T) {
	const bytes = 1 << 20
	for name, test := range map[string]struct {
		bounds body.Bounds
		free   time.Duration // the slot, at the latest
		held   int64         // at most
	}{
		"none":         {body.Bounds{Memory: 1, Files: 1}, 512 * time.Second, 0},
		"memory alone": {body.Bounds{Memory: 256 << 10, Files: 1}, (512 - 64) * time.Second, 128 << 10},
		"file alone":   {body.Bounds{Memory: 1, Files: 1 << 20}, (512 - 220) * time.Second, 512 << 10},
		"both":         {body.Bounds{Memory: 512 << 10, Files: 1 << 20}, (512 - 340) * time.Second, 768 << 10},
	} {
		synctest.Test(t, func(t *testing.T) {
			conn, o := &slowConn{ResponseWriter: httptest.NewRecorder(), second: 2 << 10}, new(over)
			store, began, done := newStore(t, test.bounds), time.Now(), make(chan error)
			var free time.Duration
			go func() {
				done <- Serve(conn, get(t), send(bytes), with(t, Options{Store: store, Served: func(err error) {
					free = time.Since(began)
					o.served(err)
				}}))
			}()
			synctest.Wait()
			if memory, file := store.Held(); o.Load() || memory+file > test.held {
				t.Errorf("%s: got the slot free: %v, with %d and %d bytes held, want the upstream to wait, and at most %d", name, o.Load(), memory, file, test.held)
			}
			err := <-done
			check.That(t, err == nil && conn.took == bytes, "%s: got %d sent, %v, want all", name, conn.took, err)
			check.That(t, free <= test.free, "%s: got the slot free after %v, want %v", name, free, test.free)
		})
	}
}

// TestAStalledClient holds memory and file, but no slot.
func TestAStalledClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, o := &slowConn{ResponseWriter: httptest.NewRecorder()}, new(over)
		store, done := newStore(t, body.Bounds{}), make(chan bool)
		go func() {
			cut, _ := aborted(func() error {
				return Serve(conn, get(t), send(3<<20), with(t, Options{Store: store, Served: o.served}))
			})
			done <- cut
		}()
		synctest.Wait()
		memory, file := store.Held()
		check.That(t, o.Load() && memory != 0 && file != 0, "got the slot free: %v, with %d and %d bytes held, want it free", o.Load(), memory, file)
		_ = conn.SetWriteDeadline(time.Now()) // as when the connection breaks
		check.That(t, <-done, "got a part of the response as if it were all, want it aborted")
	})
}

// Two handlers with slots of their own serve one request.
func TestCallsWithinOneAnotherAreOverTogether(t *testing.T) {
	for free, bounds := range map[bool]body.Bounds{true: {}, false: {Memory: 1, Files: 1}} {
		synctest.Test(t, func(t *testing.T) {
			conn, outer, inner := &slowConn{ResponseWriter: httptest.NewRecorder(), second: 8 << 10}, new(over), new(over)
			store, done := newStore(t, bounds), make(chan error)
			go func() {
				done <- Serve(conn, get(t), caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
					return Serve(w, r, send(100<<10), Options{Store: store, Served: inner.served})
				}), Options{Store: store, Served: outer.served})
			}()
			synctest.Wait()
			check.That(t, outer.Load() == free && inner.Load() == free, "got the slots free: %v and %v, want %v for both", outer.Load(), inner.Load(), free)
			err := <-done
			check.That(t, err == nil && conn.took == 100<<10 && inner.Load(), "got %d sent, %v, want all", conn.took, err)
		})
	}
}

// TestWritesAndFlushesAtRandom arrive as they were written.
func TestWritesAndFlushesAtRandom(t *testing.T) {
	for name, bounds := range map[string]body.Bounds{"room": {}, "little": {Memory: 64 << 10, Files: 256 << 10}, "none": {Memory: 1, Files: 1}} {
		store := newStore(t, bounds)
		var want bytes.Buffer
		askInBothProtocols(t, func(w http.ResponseWriter, r *http.Request) error {
			random := rand.New(rand.NewPCG(1, 2))
			want.Reset()
			for range 200 {
				p := make([]byte, random.IntN(1<<random.IntN(17)))
				for i := range p {
					p[i] = byte(random.Uint32())
				}
				want.Write(p)
				n, err := w.Write(p)
				check.That(t, n == len(p) && err == nil, "%s: got %d, %v, want all %d bytes written", name, n, err, len(p))
				if random.IntN(4) == 0 {
					_ = http.NewResponseController(w).Flush()
				}
			}
			return nil
		}, with(t, Options{Store: store}), func(protocol string, response *http.Response) {
			got, err := io.ReadAll(response.Body)
			check.That(t, bytes.Equal(got, want.Bytes()) && err == nil, "%s, %s: got %d bytes, %v, want the %d that were written", name, protocol, len(got), err, want.Len())
		})
	}
}

// TestFlush has everything sent that was written, while the handler goes on.
func TestFlush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		recorder := httptest.NewRecorder()
		conn := &slowConn{ResponseWriter: recorder, second: 1 << 10}
		_ = Serve(conn, get(t), caddyhttp.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) error {
			for n := range 3 {
				began := time.Now()
				_, _ = w.Write(make([]byte, 3<<10))
				recorder.Flushed = false
				err := http.NewResponseController(w).Flush()
				check.That(t, err == nil && time.Since(began) == 0, "got %v after %v, want the handler to go on at once", err, time.Since(began))
				time.Sleep(3*time.Second + 1)
				synctest.Wait()
				check.That(t, conn.took == (n+1)*3<<10 && recorder.Flushed, "got %d bytes sent, and flushed: %v, want %d, flushed", conn.took, recorder.Flushed, (n+1)*3<<10)
			}
			return nil
		}), with(t, Options{}))
	})
}

func TestAStreamIsWrittenThrough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := &slowConn{ResponseWriter: httptest.NewRecorder(), second: 1 << 10}
		_ = Serve(conn, get(t), caddyhttp.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) error {
			w.Header().Set("Content-Type", "Text/Event-Stream; charset=utf-8")
			for n := range 3 {
				_, _ = io.WriteString(w, "hello")
				check.That(t, conn.took == 5*n+5, "got %d bytes sent, want %d", conn.took, 5*n+5)
			}
			return nil
		}), with(t, Options{}))
	})
}

// A writer outside, such as one that compresses, may change the header with the first

// piece, while a handler within adds trailers.
type changing struct{ *slowConn }

func (c changing) Write(p []byte) (int, error) {
	c.Header().Set("Content-Encoding", "x")
	c.Header().Del("Content-Length")
	for range c.Header() {
	}
	return c.slowConn.Write(p)
}

func TestTheHandlerAndTheSenderShareNoHeader(t *testing.T) {
	recorder := httptest.NewRecorder()
	recorder.Header().Set("Server", "x")
	conn := changing{&slowConn{ResponseWriter: recorder, second: 1 << 30}}
	if err := Serve(conn, get(t), caddyhttp.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) error {
		w.Header().Set("Content-Length", "20000")
		w.Header().Set("Trailer", "X-Sum")
		for range 20 {
			_, _ = w.Write(make([]byte, 1000))
			_ = http.NewResponseController(w).Flush()
			w.Header().Add("X-Sum", "1")
			w.Header().Set(http.TrailerPrefix+"X-Late", "2")
		}
		return nil
	}), with(t, Options{})); err != nil {
		t.Fatal(err)
	}
	want := http.Header{"Server": {"x"}, "Trailer": {"X-Sum"}, "X-Sum": slices.Repeat([]string{"1"}, 20), "Trailer:X-Late": {"2"}, "Content-Encoding": {"x"}}
	got := recorder.Header()
	check.That(t, maps.EqualFunc(got, want, slices.Equal), "got %v, want %v", got, want)
}

// An http2Writer sends hints as HTTP/2 does: from a copy of the header only if that has a length, and perhaps
// after WriteHeader has returned, if the client has left.
type http2Writer struct {
	*httptest.ResponseRecorder
	hints http.Header
}

func (w *http2Writer) WriteHeader(status int) {
	if status >= 200 {
		w.ResponseRecorder.WriteHeader(status)
		return
	}
	w.hints = w.Header()
	if _, set := w.hints["Content-Length"]; set {
		w.hints = w.hints.Clone()
		w.hints.Del("Content-Length")
	}
}

func TestHintsAreNotChangedWhileTheyAreSent(t *testing.T) {
	for _, length := range [][]string{nil, {"5"}} {
		w := &http2Writer{ResponseRecorder: httptest.NewRecorder()}
		check.OK(t, Serve(w, get(t), caddyhttp.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) error {
			if length != nil {
				w.Header()["Content-Length"] = length
			}
			w.Header().Set("Link", "</style.css>")
			w.WriteHeader(http.StatusEarlyHints)
			w.Header().Del("Link")
			_, set := w.Header()["Content-Length"]
			check.Equal(t, set, length != nil, "the handler's own length")
			return nil
		}), with(t, Options{})), "serving")
		check.That(t, maps.EqualFunc(w.hints, http.Header{"Link": {"</style.css>"}}, slices.Equal), "got %v sent, want the link", w.hints)
	}
}

func TestAHandlersMistakesAreToldAtOnce(t *testing.T) {
	var told []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = Serve(w, r, caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
			switch r.URL.Path {
			case "/none":
				w.WriteHeader(http.StatusNoContent)
			case "/long":
				w.Header().Set("Content-Length", "5")
			}
			for _, text := range []string{"hello", "world"} {
				_, err := io.WriteString(w, text)
				told = append(told, fmt.Sprint(err))
			}
			return nil
		}), with(t, Options{}))
	}))
	defer server.Close()
	for path, want := range map[string][]string{
		"/":     {"<nil>", "<nil>"},
		"/none": {http.ErrBodyNotAllowed.Error(), http.ErrBodyNotAllowed.Error()},
		"/long": {"<nil>", http.ErrContentLength.Error()},
	} {
		for _, method := range []string{http.MethodGet, http.MethodHead} {
			told = nil
			r, _ := http.NewRequestWithContext(t.Context(), method, server.URL+path, nil)
			response, err := server.Client().Do(r)
			check.OK(t, err)
			body, err := io.ReadAll(response.Body)
			response.Body.Close()
			wantBody := map[string]string{"GET/": "helloworld", "GET/long": "hello"}[method+path]
			if !slices.Equal(told, want) || string(body) != wantBody || err != nil {
				t.Errorf("%s %s: got %q, %v, and the handler was told %q, want %q and %q", method, path, body, err, told, wantBody, want)
			}
		}
	}
}

// askInBothProtocols lets a client ask the handler in HTTP/1.1 and in HTTP/2.
func askInBothProtocols(t *testing.T, handler caddyhttp.HandlerFunc, o Options, judge func(protocol string, response *http.Response)) {
	t.Helper()
	both := map[string]*http.Protocols{"HTTP/1.1": new(http.Protocols), "HTTP/2": new(http.Protocols)}
	both["HTTP/1.1"].SetHTTP1(true)
	both["HTTP/2"].SetUnencryptedHTTP2(true)
	for name, protocols := range both {
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_ = Serve(w, r, handler, o)
		}))
		server.Config.Protocols = protocols
		server.Start()
		client := &http.Client{Transport: &http.Transport{Protocols: protocols}}
		response, err := client.Get(server.URL)
		check.OK(t, err, name)
		judge(name, response)
		response.Body.Close()
		client.CloseIdleConnections()
		server.Close()
	}
}

// A panicking writer is one of another module, outside.
type panicking struct{ *slowConn }

func (panicking) Write([]byte) (int, error) { panic("a writer's") }

func TestAPanicOfAWriterIsTheHandlers(t *testing.T) {
	for _, size := range []int{10, 100 << 10} {
		func() {
			defer func() {
				check.Equal(t, recover(), any("a writer's"), "%d bytes: the panic", size)
			}()
			_ = Serve(panicking{&slowConn{ResponseWriter: httptest.NewRecorder()}}, get(t), send(size), with(t, Options{}))
		}()
	}
}

// After the handler has returned, its connection may be another request's.
func TestContextsOfACallEndWithIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		client, leave := context.WithCancelCause(context.WithValue(t.Context(), key{}, "value"))
		leave(errors.New("the client's reason"))
		r := httptest.NewRequest(http.MethodGet, "/", nil).WithContext(client)
		var child context.Context
		var ran, never bool
		_ = Serve(httptest.NewRecorder(), r, caddyhttp.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) error {
			var cancel context.CancelFunc
			child, cancel = context.WithCancel(r.Context())
			context.AfterFunc(r.Context(), func() { ran = true })
			stop := context.AfterFunc(r.Context(), func() { never = true })
			check.That(t, stop() && !stop(), "got it not stopped, or twice, want it stopped once")
			synctest.Wait()
			if r.Context().Err() != nil || child.Err() != nil || context.Cause(r.Context()) != nil || r.Context().Value(key{}) != "value" {
				t.Errorf("got %v and %v, want neither over", r.Context().Err(), child.Err())
			}
			_ = cancel
			return nil
		}), with(t, Options{}))
		synctest.Wait()
		check.That(t, errors.Is(child.Err(), context.Canceled) && ran && !never, "got %v, ran %v and %v, want the context of the child over", child.Err(), ran, never)
	})
}
