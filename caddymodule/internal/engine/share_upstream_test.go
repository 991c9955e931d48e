package engine_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/detached"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/engine"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/stores"
)

// A busyUpstream counts the requests that it works on. An answer has headers and a
// beginning, and ends when it is told to.
type busyUpstream struct {
	*httptest.Server
	finish                     chan struct{}
	working, most, ended, left atomic.Int64
}

func newBusyUpstream(t *testing.T) *busyUpstream {
	u := &busyUpstream{finish: make(chan struct{})}
	u.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		now := u.working.Add(1)
		for most := u.most.Load(); now > most && !u.most.CompareAndSwap(most, now); most = u.most.Load() {
		}
		defer u.ended.Add(1)
		defer u.working.Add(-1)
		if r.URL.Path == "/events" {
			w.Header().Set("Content-Type", "text/event-stream")
		}
		if r.URL.Path != "/silent" {
			_, _ = io.WriteString(w, "the beginning")
			_ = http.NewResponseController(w).Flush()
		}
		select {
		case <-u.finish:
		case <-r.Context().Done():
			u.left.Add(1)
			return
		}
		_, _ = io.WriteString(w, "the end")
	}))
	t.Cleanup(u.Close)
	return u
}

// Whoever hangs up as soon as the upstream works would otherwise get it to work on any
// number of requests.
func TestClientsThatHangUpCannotOverfillARealUpstream(t *testing.T) {
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2"} {
		for _, path := range []string{"/", "/silent"} {
			t.Run(protocol+path, func(t *testing.T) {
				u := newBusyUpstream(t)
				port := servertest.FreeAddress(t)
				servertest.MustLoad(t, fmt.Sprintf("{\nservers {\nprotocols h1 h2c\n}\n}\nhttp://%s {\nthrottle {\nzone busy {\nin_flight 2 wait 60s {\n\tshare header X-Client\n}\n}\n}\nreverse_proxy %s\n}", port, u.Listener.Addr()))
				transport := &http.Transport{Protocols: new(http.Protocols)}
				transport.Protocols.SetHTTP1(protocol == "HTTP/1.1")
				transport.Protocols.SetUnencryptedHTTP2(protocol == "HTTP/2")
				defer transport.CloseIdleConnections()
				ask := func(ctx context.Context, client int) (*http.Response, error) {
					r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1"+port+path, nil)
					if err != nil {
						t.Fatal(err)
					}
					r.Header.Set("X-Client", fmt.Sprint(client))
					return transport.RoundTrip(r)
				}
				live := engine.JoinState("busy")
				defer func() { _ = stores.Leave(engine.StateKey("busy")) }()
				var all sync.WaitGroup
				hangUp := func(client int) {
					ctx, cancel := context.WithCancel(t.Context())
					working := u.working.Load()
					all.Go(func() {
						if response, err := ask(ctx, client); err == nil {
							<-ctx.Done()
							response.Body.Close()
						}
					})
					servertest.Soon(t, "the upstream to work", func() bool { return u.working.Load() > working })
					cancel()
				}
				hangUp(1)
				hangUp(2)
				for client := range 4 {
					all.Go(func() {
						if response, err := ask(t.Context(), 3+client); err == nil {
							_, _ = io.Copy(io.Discard, response.Body)
							response.Body.Close()
						}
					})
				}
				servertest.Soon(t, "some to wait", func() bool { waiting, _ := live.Enforced.Counts(); return waiting > 0 })
				if got := u.working.Load(); got != 2 || u.left.Load() != 0 {
					t.Errorf("got %d at work and %d ended early, want the two whose clients have gone still at work", got, u.left.Load())
				}
				close(u.finish)
				all.Wait()
				if most := u.most.Load(); most > 2 {
					t.Errorf("got %d at work at once, want 2", most)
				}
				servertest.Soon(t, "all slots to be free", func() bool { _, served := live.Enforced.Counts(); return served == 0 })
			})
		}
	}
}

func TestAStreamOfARealUpstreamEndsWithItsClient(t *testing.T) {
	u := newBusyUpstream(t)
	port := servertest.FreeAddress(t)
	servertest.MustLoad(t, fmt.Sprintf("http://%s {\nthrottle {\nzone busy {\nin_flight 2 {\n\tshare\n}\n}\n}\nreverse_proxy %s\n}", port, u.Listener.Addr()))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1"+port+"/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	cancel()
	servertest.Soon(t, "the stream to end", func() bool { return u.left.Load() == 1 })
}

// A client that reads slowly holds no worker: the rest of the answer waits in memory.
func TestASlowReaderOfARealUpstreamHoldsNoSlot(t *testing.T) {
	page := make([]byte, 900<<10)
	for i := range page {
		page[i] = byte(i * i >> 8)
	}
	u := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/chunks" { // a proxy flushes these
			_ = http.NewResponseController(w).Flush()
		}
		_, _ = w.Write(page)
	}))
	defer u.Close()
	// Over HTTP/1.1, answers must be more than the kernel's buffers hold.
	for protocol, answers := range map[string]int{"HTTP/1.1": 20, "HTTP/2": 3} {
		for _, path := range []string{"/", "/chunks"} {
			t.Run(protocol+path, func(t *testing.T) {
				port := servertest.FreeAddress(t)
				servertest.MustLoad(t, fmt.Sprintf("{\nservers {\nprotocols h1 h2c\n}\n}\nhttp://%s {\nthrottle {\nzone slow {\nin_flight 1 wait 60s {\n\tshare\n}\n}\n}\nreverse_proxy %s\n}", port, u.Listener.Addr()))
				live := engine.JoinState("slow")
				defer func() { _ = stores.Leave(engine.StateKey("slow")) }()
				before := detached.Answers.Used()
				read := askWithoutReading(t, protocol, port, path, answers)
				// Between two answers the slot is free for a moment, too, and then nothing is held.
				servertest.Soon(t, "the slot to be free while an answer waits for its client", func() bool {
					held := detached.Answers.Used()
					_, served := live.Enforced.Counts()
					return held > before && served == 0 && detached.Answers.Used() == held
				})
				for range answers {
					if got, err := read(); err != nil || !bytes.Equal(got, page) {
						t.Fatalf("got %d bytes, %v, want the page of %d", len(got), err, len(page))
					}
				}
				servertest.Soon(t, "no answer to be held", func() bool { return detached.Answers.Used() == before })
			})
		}
	}
}

// Clients leave before, in and after their answers, which end or break off. Neither
// memory nor a slot is lost, and others get their answers.
func TestClientsThatLeaveAtAnyStageLeaveNothingBehind(t *testing.T) {
	page := bytes.Repeat([]byte("a page "), 100<<10)
	u := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for i, chunk := range slices.Collect(slices.Chunk(page, 50<<10)) {
			_, _ = w.Write(chunk)
			if i == 3 && r.URL.Path == "/broken" {
				panic(http.ErrAbortHandler)
			}
			_ = http.NewResponseController(w).Flush()
		}
	}))
	u.Config.ErrorLog = log.New(io.Discard, "", 0)
	defer u.Close()
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2"} {
		t.Run(protocol, func(t *testing.T) {
			port := servertest.FreeAddress(t)
			servertest.MustLoad(t, fmt.Sprintf("{\nservers {\nprotocols h1 h2c\n}\n}\nhttp://%s {\nencode gzip\nthrottle {\nzone stages {\nin_flight 8 wait 60s {\n\tshare\n}\n}\n}\nreverse_proxy %s\n}", port, u.Listener.Addr()))
			live := engine.JoinState("stages")
			defer func() { _ = stores.Leave(engine.StateKey("stages")) }()
			transport := &http.Transport{Protocols: new(http.Protocols), MaxIdleConnsPerHost: 4}
			transport.Protocols.SetHTTP1(protocol == "HTTP/1.1")
			transport.Protocols.SetUnencryptedHTTP2(protocol == "HTTP/2")
			defer transport.CloseIdleConnections()
			before := detached.Answers.Used()
			var served atomic.Int64
			var clients sync.WaitGroup
			for i := range 200 {
				clients.Go(func() {
					path, reads := []string{"/", "/broken", "/"}[i%3], i*len(page)/150 // a quarter reads all
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					if i%10 == 0 {
						cancel() // as soon as it asks
					}
					r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1"+port+path, nil)
					if err != nil {
						t.Error(err)
						return
					}
					if i%2 == 0 {
						r.Header.Set("Accept-Encoding", "gzip") // others by the transport
						reads /= 50
					}
					response, err := transport.RoundTrip(r)
					if err != nil {
						return
					}
					defer response.Body.Close()
					n, err := io.CopyN(io.Discard, response.Body, int64(reads)+1)
					if response.StatusCode != http.StatusOK {
						return // one client may not fill the whole queue
					}
					served.Add(1)
					if path == "/broken" && err == io.EOF {
						t.Errorf("got %d bytes of an answer that broke off as if they were all", n)
					}
				})
			}
			clients.Wait()
			if served.Load() < 20 {
				t.Errorf("got %d answers that began, want many", served.Load())
			}
			servertest.Soon(t, "no slot to be held", func() bool { waiting, served := live.Enforced.Counts(); return waiting+served == 0 })
			servertest.Soon(t, "no answer to be held", func() bool { return detached.Answers.Used() == before })
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://127.0.0.1"+port+"/", nil)
			if err != nil {
				t.Fatal(err)
			}
			response, err := transport.RoundTrip(r)
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			if got, err := io.ReadAll(response.Body); err != nil || !bytes.Equal(got, page) {
				t.Errorf("got %d bytes, %v after all have left, want the page of %d", len(got), err, len(page))
			}
		})
	}
}

// askWithoutReading asks for n answers over one connection. Read reads the next one.
func askWithoutReading(t *testing.T, protocol, port, path string, n int) (read func() ([]byte, error)) {
	t.Helper()
	if protocol == "HTTP/1.1" {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", "127.0.0.1"+port)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		if _, err := io.WriteString(conn, strings.Repeat("GET "+path+" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", n)); err != nil {
			t.Fatal(err)
		}
		answers := bufio.NewReader(conn)
		return func() ([]byte, error) {
			response, err := http.ReadResponse(answers, nil)
			if err != nil {
				return nil, err
			}
			defer response.Body.Close()
			return io.ReadAll(response.Body)
		}
	}
	transport := &http.Transport{
		Protocols: new(http.Protocols), HTTP2: &http.HTTP2Config{MaxReceiveBufferPerStream: 64 << 10, MaxReceiveBufferPerConnection: 4 << 20},
	}
	transport.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(transport.CloseIdleConnections)
	answers := make(chan *http.Response, n)
	for range n {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://127.0.0.1"+port+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := transport.RoundTrip(r)
		if err != nil || response.StatusCode != http.StatusOK {
			t.Fatalf("got %v, %v, want an answer", response, err)
		}
		t.Cleanup(func() { _ = response.Body.Close() })
		answers <- response
	}
	return func() ([]byte, error) { return io.ReadAll((<-answers).Body) }
}
