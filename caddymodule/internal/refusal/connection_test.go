package refusal

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

var tooMany = &Refusal{Status: http.StatusTooManyRequests, Waits: true, RetryAfter: time.Minute, TimeToFit: time.Second}

// refuses is a site that refuses all, through a response writer that is wrapped as
// Caddy's are.
func refuses(w http.ResponseWriter, r *http.Request) {
	read := r.Header.Get("X-Read") != ""
	if read {
		_, _ = io.Copy(io.Discard, r.Body)
	}
	w = &caddyhttp.ResponseWriterWrapper{ResponseWriter: caddyhttp.NewResponseRecorder(w, nil, nil)}
	refusal := *tooMany
	refusal.AsError = r.Header.Get("X-Error") != ""
	var failed caddyhttp.HandlerError
	if errors.As(refusal.Write(w, r, read), &failed) {
		http.Error(w, failed.Error(), failed.StatusCode) // the error route
	}
}

// listen serves refusals over a socket.
func listen(t testing.TB, configure func(*httptest.Server)) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(refuses))
	if configure == nil {
		server.Start()
	} else {
		configure(server)
	}
	t.Cleanup(server.Close)
	return server
}

// A pipe is a listener with one connection.
type pipe chan net.Conn

func (p pipe) Accept() (net.Conn, error) {
	if conn, open := <-p; open {
		return conn, nil
	}
	return nil, net.ErrClosed
}

func (p pipe) Close() error {
	close(p)
	return nil
}

func (p pipe) Addr() net.Addr { return &net.TCPAddr{} }

// An ask is a connection on which a request was sent.
type ask struct {
	net.Conn
	*bufio.Reader
}

func dial(t testing.TB, server *httptest.Server) ask {
	t.Helper()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	return ask{conn, bufio.NewReader(conn)}
}

// connect returns a connection to a server that refuses, for virtual time.
func connect(t *testing.T) ask {
	listener := make(pipe, 1)
	server := &http.Server{Handler: http.HandlerFunc(refuses)}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { server.Close() })
	conn, there := net.Pipe()
	t.Cleanup(func() { conn.Close() })
	listener <- there
	return ask{conn, bufio.NewReader(conn)}
}

// answer reads an answer whole.
func (a ask) answer() (*http.Response, error) {
	resp, err := http.ReadResponse(a.Reader, nil)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	_, err = io.ReadAll(resp.Body)
	return resp, err
}

func (a ask) Read(p []byte) (int, error) { return a.Reader.Read(p) }

// chunked is a body of that size in chunks.
func chunked(size int) string {
	const chunk = 8 << 10
	piece := fmt.Sprintf("%x\r\n%s\r\n", chunk, strings.Repeat("x", chunk))
	return strings.Repeat(piece, size/chunk) + "0\r\n\r\n"
}

// Clients that send everything before they read get the answer all the same,
// whether they finish, stall, or send more than the server takes in.
func TestARefusedUploadAlwaysGetsTheAnswer(t *testing.T) {
	const each, together = 300, 30
	server := listen(t, nil)
	for _, test := range []struct {
		about, headers, body string
		keeps                bool // the connection, if the body arrives in time
	}{
		{"64 KiB", "Content-Length: 65536\r\n", strings.Repeat("x", 64<<10), true},
		{"256 KiB", "Content-Length: 262144\r\n", strings.Repeat("x", 256<<10), false},
		{"1 MiB", "Content-Length: 1048576\r\n", strings.Repeat("x", 1<<20), false},
		{"a form", "Content-Length: 30\r\n", strings.Repeat("x", 30), true},
		{"chunked 64 KiB", "Transfer-Encoding: chunked\r\n", chunked(64 << 10), false},
		{"chunked 1 MiB", "Transfer-Encoding: chunked\r\n", chunked(1 << 20), false},
		{"nothing of 64 KiB", "Content-Length: 65536\r\n", "", false},
		{"half of 64 KiB", "Content-Length: 65536\r\n", strings.Repeat("x", 32<<10), false},
		{"half a chunk", "Transfer-Encoding: chunked\r\n", "100\r\nx", false},
		{"it asks first", "Content-Length: 65536\r\nExpect: 100-continue\r\n", "", false},
		{"it asks first, chunked", "Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n", "", false},
		{"it asks first, and sends", "Content-Length: 65536\r\nExpect: 100-continue\r\n", strings.Repeat("x", 64<<10), false},
	} {
		for _, closing := range []string{"", "Connection: close\r\n"} {
			for _, route := range []string{"", "X-Error: 1\r\n"} {
				name := fmt.Sprintf("%s/closing=%v/error=%v", test.about, closing != "", route != "")
				t.Run(name, func(t *testing.T) {
					var (
						all      sync.WaitGroup
						mu       sync.Mutex
						answered int
						failure  error
					)
					slots := make(chan struct{}, together)
					for range each {
						slots <- struct{}{}
						all.Go(func() {
							defer func() { <-slots }()
							a := dial(t, server)
							defer a.Close()
							_, _ = io.WriteString(a, "POST / HTTP/1.1\r\nHost: x\r\n"+test.headers+closing+route+"\r\n")
							_, _ = io.WriteString(a, test.body) // may fail: the server does not want it
							resp, err := a.answer()
							mu.Lock()
							defer mu.Unlock()
							switch {
							case err != nil:
								failure = err
							case resp.StatusCode != http.StatusTooManyRequests || !resp.Close && !test.keeps || resp.Header.Get("Retry-After") != "60":
								failure = fmt.Errorf("got %v, closing %v, %v", resp.Status, resp.Close, resp.Header)
							default:
								answered++
							}
						})
					}
					all.Wait()
					if answered != each {
						t.Errorf("got %d answers of %d; the last failure: %v", answered, each, failure)
					}
				})
			}
		}
	}
}

func TestGoClientsAlwaysGetTheAnswerToARefusedUpload(t *testing.T) {
	server := listen(t, nil)
	for _, size := range []int{30, 64 << 10, 1 << 20} {
		for _, length := range []int64{int64(size), -1} {
			for _, closing := range []bool{false, true} {
				t.Run(fmt.Sprintf("size=%d/length=%d/closing=%v", size, length, closing), func(t *testing.T) {
					const each = 200
					answered := 0
					var failure error
					for range each {
						r, _ := http.NewRequest("POST", server.URL, io.NopCloser(bytes.NewReader(make([]byte, size))))
						r.ContentLength, r.Close = length, closing
						resp, err := server.Client().Do(r)
						if err != nil {
							failure = err
							continue
						}
						if _, err := io.Copy(io.Discard, resp.Body); err == nil && resp.StatusCode == http.StatusTooManyRequests {
							answered++
						}
						resp.Body.Close()
					}
					if answered != each {
						t.Errorf("got %d answers of %d; the last failure: %v", answered, each, failure)
					}
				})
			}
		}
	}
}

func TestARefusalDoesNotWaitForABodyThatDoesNotCome(t *testing.T) {
	for headers, closed := range map[string]time.Duration{ // at most
		"Content-Length: 1\r\n":                             2 * linger,
		"Content-Length: 65536\r\n":                         2 * linger,
		"Content-Length: 65536\r\nConnection: close\r\n":    2 * linger,
		"Content-Length: 1048576\r\n":                       2 * linger,
		"Transfer-Encoding: chunked\r\n":                    2 * linger,
		"Content-Length: 65536\r\nExpect: 100-continue\r\n": 2 * linger,
		"Content-Length: 65536\r\nX-Error: 1\r\n":           routing + linger,
	} {
		t.Run(headers, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := connect(t)
				began := time.Now()
				fmt.Fprintf(a, "POST / HTTP/1.1\r\nHost: x\r\n%s\r\n", headers)
				resp, err := a.answer()
				if took := time.Since(began); err != nil || resp.StatusCode != http.StatusTooManyRequests || took > glance {
					t.Fatalf("got %v, %v after %v, want 429 at once", resp, err, took)
				}
				_, err = a.ReadByte()
				if took := time.Since(began); err != io.EOF || took > closed {
					t.Errorf("got %v after %v, want the connection closed within %v", err, took, closed)
				}
			})
		})
	}
}

// In virtual time, what is sent in one write arrives at one time.
func TestARefusalKeepsAConnectionWhoseSmallBodyHasArrived(t *testing.T) {
	for size, want := range map[int]int{1: 5, 3000: 5, small: 5, small + 1: 1} {
		synctest.Test(t, func(t *testing.T) {
			request := fmt.Sprintf("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", size, strings.Repeat("x", size))
			a := connect(t)
			go func() { _, _ = io.WriteString(a, strings.Repeat(request, 5)) }()
			got := 0
			for range 5 {
				resp, err := a.answer()
				if err != nil || resp.StatusCode != http.StatusTooManyRequests {
					break
				}
				got++
			}
			if got != want {
				t.Errorf("%d bytes: got %d answers on one connection, want %d", size, got, want)
			}
		})
	}
}

// TestARefusalEndsNoConnectionThatCanGoOn, since a new one costs more than the
// refusal, with TLS in particular.
func TestARefusalEndsNoConnectionThatCanGoOn(t *testing.T) {
	server := listen(t, nil)
	for _, request := range []string{
		"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
		"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nX-Read: 1\r\n\r\nabc",
		"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nX-Read: 1\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
	} {
		a := dial(t, server)
		for i := range 3 {
			_, _ = io.WriteString(a, request)
			resp, err := http.ReadResponse(a.Reader, &http.Request{Method: request[:strings.Index(request, " ")]})
			if err != nil || resp.StatusCode != http.StatusTooManyRequests || resp.Close {
				t.Fatalf("%q, request %d: got %v, %v, want 429 and the connection kept", request, i+1, resp, err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
		}
	}
}

func TestARefusalEndsNoConnectionOfHTTP2(t *testing.T) {
	connections := 0
	server := listen(t, func(server *httptest.Server) {
		server.EnableHTTP2 = true
		server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
			if state == http.StateNew {
				connections++
			}
		}
		server.StartTLS()
	})
	for i := range 20 {
		body, upload := io.Pipe()
		r, _ := http.NewRequest("POST", server.URL, body)
		if i%2 == 0 {
			r.ContentLength = 1 << 20
		}
		go func() { _, _ = upload.Write(make([]byte, 10)) }() // and no more
		resp, err := server.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.Copy(io.Discard, resp.Body)
		if resp.ProtoMajor != 2 || err != nil || resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Connection") != "" {
			t.Errorf("got %v, %v, %v, want 429 over HTTP/2", resp.Status, err, resp.Header)
		}
		_ = upload.Close()
	}
	server.Close()
	if connections != 1 {
		t.Errorf("got %d connections, want 1", connections)
	}
}

// An error route may still want the body, such as one that proxies.
func TestAnErrorRouteMayReadTheBody(t *testing.T) {
	const size = 100_000
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		refusal := *tooMany
		refusal.AsError = true
		_ = refusal.Write(w, r, false)
		w.WriteHeader(http.StatusTooManyRequests)
		n, err := io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, n, err)
	}))
	defer server.Close()
	resp, err := http.Post(server.URL, "", bytes.NewReader(make([]byte, size)))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if got, _ := io.ReadAll(resp.Body); string(got) != fmt.Sprint(size, nil) {
		t.Errorf("the error route got %s, want %d bytes", got, size)
	}
}

// BenchmarkRefusedUpload is what 64 clients at once are refused, each on its connection for
// as long as that is kept:
//
//	body=arrived   the small body is sent with the headers
//	body=missing   it never is, as by an attacker who pays for headers only
func BenchmarkRefusedUpload(b *testing.B) {
	for name, body := range map[string]string{"arrived": "name=x", "missing": ""} {
		b.Run("body="+name, func(b *testing.B) {
			server := listen(b, nil)
			b.SetParallelism(64 / runtime.GOMAXPROCS(0))
			b.RunParallel(func(pb *testing.PB) {
				var a ask
				for pb.Next() {
					if a.Conn == nil {
						conn, err := net.Dial("tcp", server.Listener.Addr().String())
						if err != nil {
							b.Error(err)
							return
						}
						a = ask{conn, bufio.NewReader(conn)}
					}
					_, _ = io.WriteString(a.Conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 6\r\n\r\n"+body)
					resp, err := a.answer()
					if err != nil || resp.StatusCode != http.StatusTooManyRequests {
						b.Errorf("got %v, %v, want 429", resp, err)
						return
					}
					if resp.Close {
						a.Conn.Close()
						a.Conn = nil
					}
				}
				if a.Conn != nil {
					a.Conn.Close()
				}
			})
		})
	}
}
