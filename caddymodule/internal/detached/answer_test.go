package detached

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
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
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

func TestTheCallIsOverWhileItsClientReadsOn(t *testing.T) {
	for _, test := range []struct {
		bytes  int
		served time.Duration // at the latest
	}{
		{300, 0},
		{smallPiece, 0},
		{smallPiece + 1, 0},
		{300 << 10, 0},
		{mostAnswer - largePiece, 0},
		{mostAnswer + 100<<10, 75 * time.Second}, // the handler waits for what is too much
	} {
		synctest.Test(t, func(t *testing.T) {
			conn, o := &slowConn{ResponseWriter: httptest.NewRecorder(), second: 2 << 10}, new(over)
			began, done := time.Now(), make(chan error)
			go func() { done <- Serve(conn, get(t), send(test.bytes), o.served, nil) }()
			time.Sleep(test.served)
			synctest.Wait()
			if !o.Load() {
				t.Errorf("%d bytes: got the call going on after %v, want it over", test.bytes, test.served)
			}
			if err := <-done; err != nil || conn.took != test.bytes {
				t.Errorf("%d bytes: got %d sent, %v, want all", test.bytes, conn.took, err)
			}
			if want := time.Duration(test.bytes) * time.Second / (2 << 10); time.Since(began).Round(time.Second) != want.Round(time.Second) {
				t.Errorf("%d bytes: got all sent after %v, want %v", test.bytes, time.Since(began), want)
			}
			if used := Answers.Used(); used != 0 {
				t.Errorf("%d bytes: got %d bytes of memory left behind, want none", test.bytes, used)
			}
		})
	}
}

func TestTheHandlerWaitsForAClientThatIsAMebibyteBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, o := &slowConn{ResponseWriter: httptest.NewRecorder(), second: 2 << 10}, new(over)
		done := make(chan error)
		go func() { done <- Serve(conn, get(t), send(2*mostAnswer), o.served, nil) }()
		synctest.Wait()
		if o.Load() || Answers.Used() != mostAnswer {
			t.Errorf("got the call over: %v, and %d bytes in memory, want the handler to wait with a mebibyte", o.Load(), Answers.Used())
		}
		if err := <-done; err != nil || conn.took != 2*mostAnswer {
			t.Errorf("got %d bytes sent, %v, want all", conn.took, err)
		}
	})
}

// Two handlers with zones of their own serve one request.
func TestCallsWithinOneAnotherAreOverTogether(t *testing.T) {
	for _, test := range []struct {
		bytes  int
		served bool
	}{
		{mostAnswer / 2, true},
		{mostAnswer + mostAnswer/2, false}, // for both
	} {
		synctest.Test(t, func(t *testing.T) {
			conn, outer, inner := &slowConn{ResponseWriter: httptest.NewRecorder(), second: 8 << 10}, new(over), new(over)
			done := make(chan error)
			go func() {
				done <- Serve(conn, get(t), caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
					return Serve(w, r, send(test.bytes), inner.served, nil)
				}), outer.served, nil)
			}()
			synctest.Wait()
			for name, o := range map[string]*over{"outer": outer, "inner": inner} {
				if o.Load() != test.served {
					t.Errorf("%d bytes, %s: got it over: %v, want %v", test.bytes, name, o.Load(), test.served)
				}
			}
			if used := Answers.Used(); used > mostAnswer {
				t.Errorf("%d bytes: got %d in memory, want what one answer may hold", test.bytes, used)
			}
			if err := <-done; err != nil || conn.took != test.bytes || !inner.Load() {
				t.Errorf("%d bytes: got %d sent, %v, want all", test.bytes, conn.took, err)
			}
		})
	}
}

func TestAnswersOfAllSlowClientsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const clients = 200
		var all sync.WaitGroup
		conns, ends := make([]slowConn, clients), make([]over, clients)
		for i := range conns {
			conns[i] = slowConn{ResponseWriter: httptest.NewRecorder(), second: 2 << 10}
			all.Go(func() { _ = Serve(&conns[i], get(t), send(mostAnswer), ends[i].served, nil) })
		}
		synctest.Wait()
		over := 0
		for i := range ends {
			if ends[i].Load() {
				over++
			}
		}
		if used := Answers.Used(); used > mostAnswers || used < mostAnswers-largePiece || over == 0 || over > mostAnswers/mostAnswer {
			t.Errorf("got %d bytes of memory used, and %d calls over, want no more than %d bytes", used, over, mostAnswers)
		}
		all.Wait()
		for i := range conns {
			if conns[i].took != mostAnswer {
				t.Fatalf("client %d: got %d bytes, want all", i, conns[i].took)
			}
		}
		if used := Answers.Used(); used != 0 {
			t.Errorf("got %d bytes of memory left behind, want none", used)
		}
	})
}

func TestAClientThatStopsReadingIsCutAfterTheCall(t *testing.T) {
	for _, second := range []int{0, 500} {
		synctest.Test(t, func(t *testing.T) {
			conn, o, began := &slowConn{ResponseWriter: httptest.NewRecorder(), second: second}, new(over), time.Now()
			cut, err := aborted(func() error { return Serve(conn, get(t), send(200<<10), o.served, nil) })
			if took := time.Since(began); err != nil || !cut || conn.took >= 200<<10 || took > 40*time.Second {
				t.Errorf("%d bytes a second: got %d bytes after %v, %v, aborted: %v, want it cut off", second, conn.took, took, err, cut)
			}
			if used := Answers.Used(); used != 0 || !o.Load() {
				t.Errorf("%d bytes a second: got %d bytes of memory left behind, want none", second, used)
			}
		})
	}
}

func TestAFlushIsSentAtOnceAndTheHandlerGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := &slowConn{ResponseWriter: httptest.NewRecorder(), second: 1 << 20}
		_ = Serve(conn, get(t), caddyhttp.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) error {
			for n := range 3 {
				_, _ = io.WriteString(w, "hello")
				synctest.Wait()
				if conn.took != 5*n {
					t.Errorf("got %d bytes sent before the flush, want %d", conn.took, 5*n)
				}
				_ = http.NewResponseController(w).Flush()
				time.Sleep(time.Second)
				synctest.Wait()
				if conn.took != 5*n+5 {
					t.Errorf("got %d bytes sent a second after the flush, want %d", conn.took, 5*n+5)
				}
			}
			return nil
		}), ignored, nil)
	})
}

func TestAStreamIsWrittenThrough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := &slowConn{ResponseWriter: httptest.NewRecorder(), second: 1 << 10}
		_ = Serve(conn, get(t), caddyhttp.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) error {
			w.Header().Set("Content-Type", "Text/Event-Stream; charset=utf-8")
			for n := range 3 {
				_, _ = io.WriteString(w, "hello")
				if conn.took != 5*n+5 {
					t.Errorf("got %d bytes sent, want %d", conn.took, 5*n+5)
				}
			}
			return nil
		}), ignored, nil)
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
	}), ignored, nil); err != nil {
		t.Fatal(err)
	}
	want := http.Header{"Server": {"x"}, "Trailer": {"X-Sum"}, "X-Sum": slices.Repeat([]string{"1"}, 20), "Trailer:X-Late": {"2"}, "Content-Encoding": {"x"}}
	if got := recorder.Header(); !maps.EqualFunc(got, want, slices.Equal) {
		t.Errorf("got %v, want %v", got, want)
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
		}), ignored, nil)
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
			if err != nil {
				t.Fatal(err)
			}
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
func askInBothProtocols(t *testing.T, handler caddyhttp.HandlerFunc, check func(protocol string, response *http.Response)) {
	t.Helper()
	both := map[string]*http.Protocols{"HTTP/1.1": new(http.Protocols), "HTTP/2": new(http.Protocols)}
	both["HTTP/1.1"].SetHTTP1(true)
	both["HTTP/2"].SetUnencryptedHTTP2(true)
	for name, protocols := range both {
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_ = Serve(w, r, handler, ignored, nil)
		}))
		server.Config.Protocols = protocols
		server.Start()
		client := &http.Client{Transport: &http.Transport{Protocols: protocols}}
		response, err := client.Get(server.URL)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		check(name, response)
		response.Body.Close()
		client.CloseIdleConnections()
		server.Close()
	}
}

func TestAnAnswerThatBreaksOffDoesSoForTheClient(t *testing.T) {
	askInBothProtocols(t, func(w http.ResponseWriter, _ *http.Request) error {
		_, _ = w.Write(make([]byte, 100<<10))
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}, func(protocol string, response *http.Response) {
		if body, err := io.ReadAll(response.Body); err == nil {
			t.Errorf("%s: got %d bytes and no error, want the answer to break off", protocol, len(body))
		}
	})
}

func TestTrailersFollowTheBody(t *testing.T) {
	for _, size := range []int{10, 100 << 10} {
		body := make([]byte, size)
		for i := range body {
			body[i] = byte(rand.Int())
		}
		askInBothProtocols(t, func(w http.ResponseWriter, _ *http.Request) error {
			w.Header().Set("Trailer", "X-Sum")
			_, _ = w.Write(body)
			_ = http.NewResponseController(w).Flush()
			w.Header().Set("X-Sum", "1")
			w.Header().Set(http.TrailerPrefix+"X-Late", "2")
			return nil
		}, func(protocol string, response *http.Response) {
			got, err := io.ReadAll(response.Body)
			if err != nil || !bytes.Equal(got, body) {
				t.Errorf("%s: got %d bytes, %v, want the %d that were written", protocol, len(got), err, size)
			}
			if response.Trailer.Get("X-Sum") != "1" || response.Trailer.Get("X-Late") != "2" {
				t.Errorf("%s: got the trailers %v, want both", protocol, response.Trailer)
			}
		})
	}
}

// A panicking writer is one of another module, outside.
type panicking struct{ *slowConn }

func (panicking) Write([]byte) (int, error) { panic("a writer's") }

func TestAPanicOfAWriterIsTheHandlers(t *testing.T) {
	for _, size := range []int{10, 100 << 10} {
		func() {
			defer func() {
				if got := recover(); got != "a writer's" {
					t.Errorf("%d bytes: got the panic %v, want the writer's", size, got)
				}
				if used := Answers.Used(); used != 0 {
					t.Errorf("%d bytes: got %d bytes of memory left behind, want none", size, used)
				}
			}()
			_ = Serve(panicking{&slowConn{ResponseWriter: httptest.NewRecorder()}}, get(t), send(size), ignored, nil)
		}()
	}
}

// After the handler has returned, its connection may be another request's.
func TestAfterAPanicOfAWriterNoDeadlineIsSet(t *testing.T) {
	for _, size := range []int{10, 100 << 10} {
		synctest.Test(t, func(t *testing.T) {
			conn := &slowConn{ResponseWriter: httptest.NewRecorder()}
			func() {
				defer func() { _ = recover() }()
				_ = Serve(panicking{conn}, get(t), send(size), ignored, nil)
			}()
			time.Sleep(2 * slowest)
			if len(conn.set) > 0 {
				t.Errorf("%d bytes: got the deadlines %v, want none", size, conn.set)
			}
		})
	}
}

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
			if !stop() || stop() {
				t.Error("got it not stopped, or twice, want it stopped once")
			}
			synctest.Wait()
			if r.Context().Err() != nil || child.Err() != nil || context.Cause(r.Context()) != nil || r.Context().Value(key{}) != "value" {
				t.Errorf("got %v and %v, want neither over", r.Context().Err(), child.Err())
			}
			_ = cancel
			return nil
		}), ignored, nil)
		synctest.Wait()
		if !errors.Is(child.Err(), context.Canceled) || !ran || never {
			t.Errorf("got %v, ran %v and %v, want the context of the child over", child.Err(), ran, never)
		}
	})
}
