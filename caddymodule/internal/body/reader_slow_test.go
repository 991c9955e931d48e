package body

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// slowly runs a test in virtual time against a server that is reached by
// pipes. All goroutines must have ended when the test has.
func slowly(t *testing.T, handler http.Handler, f func(t *testing.T, dial func() net.Conn)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		listener := pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
		var serving sync.WaitGroup
		serving.Add(1) // the test
		server := &http.Server{Protocols: both(), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			serving.Add(1)
			defer serving.Done()
			handler.ServeHTTP(w, r)
		})}
		go server.Serve(listener)
		f(t, func() net.Conn {
			here, there := net.Pipe()
			listener.conns <- there
			return here
		})
		serving.Done()
		serving.Wait()
		server.Close()
		time.Sleep(2 * time.Second) // clients see at their next byte that it is over
	})
}

type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (p pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.conns:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p pipes) Close() error {
	close(p.closed)
	return nil
}

func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

// slowBody sends a byte at a time, and takes as long for its end.
type slowBody struct {
	left string
	each time.Duration
}

// slowByte never comes just when patience ends.
const slowByte = 900 * time.Millisecond

func (b *slowBody) Read(p []byte) (int, error) {
	time.Sleep(b.each)
	if b.left == "" {
		return 0, io.EOF
	}
	n := copy(p[:1], b.left)
	b.left = b.left[n:]
	return n, nil
}

// transportOn speaks HTTP/2 on a connection.
func transportOn(conn net.Conn) *http.Transport {
	transport := &http.Transport{
		DialContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil },
		Protocols:   new(http.Protocols),
	}
	transport.Protocols.SetUnencryptedHTTP2(true)
	return transport
}

// slowPost sends a body, and reads the answer to its end.
func slowPost(ctx context.Context, conn net.Conn, protocol string, body io.Reader, length int64) (resp *http.Response, answer string, err error) {
	req, err := http.NewRequestWithContext(ctx, "POST", "http://example.com/", body)
	if err != nil {
		return nil, "", err
	}
	req.ContentLength = length
	if protocol == "h1" {
		resp, err = slowPost1(conn, req)
	} else {
		transport := transportOn(conn)
		defer transport.CloseIdleConnections()
		resp, err = transport.RoundTrip(req)
	}
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	return resp, string(data), err
}

// slowPost1 does not mind if the server hangs up while it sends, as Go's client
// does.
func slowPost1(conn net.Conn, req *http.Request) (*http.Response, error) {
	context.AfterFunc(req.Context(), func() { conn.Close() })
	go func() {
		if req.ContentLength >= 0 {
			fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: example.com\r\nContent-Length: %d\r\n\r\n", req.ContentLength)
			io.Copy(conn, req.Body)
			return
		}
		fmt.Fprint(conn, "POST / HTTP/1.1\r\nHost: example.com\r\nTransfer-Encoding: chunked\r\n\r\n")
		chunks := httputil.NewChunkedWriter(conn)
		if _, err := io.Copy(chunks, req.Body); err == nil {
			chunks.Close()
			fmt.Fprint(conn, "\r\n")
		}
	}()
	return http.ReadResponse(bufio.NewReader(conn), req)
}

// TestASlowBodyIsWaitedForOnlySoLong, and the upstream gets it as it comes.
func TestASlowBodyIsWaitedForOnlySoLong(t *testing.T) {
	for _, protocol := range protocols {
		for _, test := range []struct {
			bytes       int
			each        time.Duration
			known       bool
			asked, done time.Duration // when the upstream is asked, and has everything
			understood  bool
		}{
			{3, slowByte, false, 4 * slowByte, 4 * slowByte, true},
			{30, slowByte, false, patience, 31 * slowByte, false},
			{30, slowByte, true, patience, 31 * slowByte, false},
			{3, 1100 * time.Millisecond, false, pause, 4400 * time.Millisecond, false},
			{3, 1100 * time.Millisecond, true, 3300 * time.Millisecond, 4400 * time.Millisecond, true},
		} {
			name := fmt.Sprintf("%s, %d bytes, one in %v, length known %v", protocol, test.bytes, test.each, test.known)
			t.Run(name, func(t *testing.T) {
				body, length := "[1]"+strings.Repeat(" ", test.bytes-3), int64(-1)
				if test.known {
					length = int64(len(body))
					if protocol == "h2" && test.understood {
						test.asked = test.done // the length is no end
					}
				}
				var began time.Time
				slowly(t, looksAt(kib64, func(w http.ResponseWriter, r *http.Request, seen *Body) {
					if asked := time.Since(began); asked != test.asked {
						t.Errorf("the upstream was asked after %v, want %v", asked, test.asked)
					}
					if _, ok := seen.Items(Path{}); ok != test.understood || AllReceived(r) != test.understood {
						t.Errorf("got a body understood %v and received %v, want %v", ok, AllReceived(r), test.understood)
					}
					first := make([]byte, 1)
					n, err := r.Body.Read(first)
					if waited := time.Since(began) - test.asked; n != 1 || waited > test.each {
						t.Errorf("the upstream got %d bytes and %v after another %v, want what there was", n, err, waited)
					}
					w.Write(first)
					http.NewResponseController(w).EnableFullDuplex()
					if _, err = io.Copy(w, r.Body); err != nil {
						t.Error(err)
					}
				}), func(t *testing.T, dial func() net.Conn) {
					began = time.Now()
					_, got, err := slowPost(t.Context(), dial(), protocol, &slowBody{body, test.each}, length)
					if err != nil || got != body {
						t.Errorf("got %q, %v, want %q", got, err, body)
					}
					if took := time.Since(began); took > test.done {
						t.Errorf("got the answer after %v, want it after %v", took, test.done)
					}
				})
			})
		}
	}
}

// TestAnUpstreamNeedNotWaitForASlowBody: when it has answered, nobody reads any
// more.
func TestAnUpstreamNeedNotWaitForASlowBody(t *testing.T) {
	for _, protocol := range protocols {
		t.Run(protocol, func(t *testing.T) {
			slowly(t, looksAt(kib64, func(w http.ResponseWriter, _ *http.Request, _ *Body) {
				w.WriteHeader(http.StatusTeapot)
			}), func(t *testing.T, dial func() net.Conn) {
				began := time.Now()
				for range 2 {
					ctx, stop := context.WithCancel(t.Context())
					resp, _, err := slowPost(ctx, dial(), protocol, &slowBody{strings.Repeat(" ", 1000), slowByte}, -1)
					if err != nil || resp.StatusCode != http.StatusTeapot {
						t.Errorf("got %v, %v, want 418", resp, err)
					}
					stop()
				}
				if took := time.Since(began); took > 2*patience+2*time.Second {
					t.Errorf("got answers after %v, want them after twice %v", took, patience)
				}
			})
		})
	}
}

// TestABodyThatNeverBeginsHoldsNobodyUp is a client that sends the header and
// waits.
func TestABodyThatNeverBeginsHoldsNobodyUp(t *testing.T) {
	for header, want := range map[string]time.Duration{
		"Content-Length: 10":         patience,
		"Transfer-Encoding: chunked": pause,
		"Transfer-Encoding: chunked\r\nContent-Type: application/grpc": 0,
		"Content-Length: 100000": 0,
		"Transfer-Encoding: chunked\r\nConnection: upgrade\r\nUpgrade: websocket": 0,
	} {
		t.Run(header, func(t *testing.T) {
			var began time.Time
			slowly(t, looksAt(kib64, func(w http.ResponseWriter, r *http.Request, seen *Body) {
				if asked := time.Since(began); asked != want {
					t.Errorf("the upstream was asked after %v, want %v", asked, want)
				}
				if seen != nil || AllReceived(r) {
					t.Error("got a body that nobody has sent")
				}
				w.Header().Set("Connection", "close")
				w.WriteHeader(http.StatusTeapot)
				http.NewResponseController(w).SetReadDeadline(time.Now())
			}), func(t *testing.T, dial func() net.Conn) {
				began = time.Now()
				conn := dial()
				defer conn.Close()
				fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: example.com\r\n%s\r\n\r\n", header)
				resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
				if err != nil || resp.StatusCode != http.StatusTeapot {
					t.Errorf("got %v, %v, want 418", resp, err)
				}
				if took := time.Since(began); took != want {
					t.Errorf("got the answer after %v, want %v", took, want)
				}
			})
		})
	}
}

// TestAClientThatLeavesWhileItsBodyIsAwaited frees what it held at once.
func TestAClientThatLeavesWhileItsBodyIsAwaited(t *testing.T) {
	for _, protocol := range protocols {
		t.Run(protocol, func(t *testing.T) {
			var began time.Time
			slowly(t, looksAt(kib64, func(_ http.ResponseWriter, _ *http.Request, seen *Body) {
				if took := time.Since(began); took > 3*time.Second || seen != nil {
					t.Errorf("got the body awaited for %v, want it given up when the client has left", took)
				}
			}), func(t *testing.T, dial func() net.Conn) {
				ctx, stop := context.WithTimeout(t.Context(), 2500*time.Millisecond)
				defer stop()
				began = time.Now()
				if resp, _, err := slowPost(ctx, dial(), protocol, &slowBody{strings.Repeat(" ", 100), slowByte}, -1); err == nil {
					t.Errorf("got %v, want nothing, as nobody waits for it", resp.Status)
				}
			})
		})
	}
}

// TestAConversationBeginsAtOnce over HTTP/2: the client sends only after it has
// been answered. A tunnel is left alone; a conversation of an unknown type is
// waited for as long as a body may stand still.
func TestAConversationBeginsAtOnce(t *testing.T) {
	for _, test := range []struct {
		method, contentType string
		want                time.Duration
	}{
		{"CONNECT", "", 0},
		{"POST", "application/grpc", 0},
		{"POST", "application/grpc-web+proto", 0},
		{"POST", "application/octet-stream", pause},
	} {
		t.Run(test.method+" "+test.contentType, func(t *testing.T) {
			var began time.Time
			slowly(t, looksAt(kib64, func(w http.ResponseWriter, r *http.Request, seen *Body) {
				if asked := time.Since(began); asked != test.want {
					t.Errorf("the upstream was asked after %v, want %v", asked, test.want)
				}
				if n, ok := seen.Items(Path{}); ok != (test.method == "CONNECT") || ok && n != 1 {
					t.Errorf("got %d items, %v", n, ok)
				}
				w.WriteHeader(http.StatusOK)
				io.WriteString(w, "hello\n")
				http.NewResponseController(w).Flush()
				line, err := bufio.NewReader(r.Body).ReadString('\n')
				if err != nil {
					t.Error(err)
				}
				io.WriteString(w, line)
			}), func(t *testing.T, dial func() net.Conn) {
				began = time.Now()
				in, out := io.Pipe()
				req, _ := http.NewRequestWithContext(t.Context(), test.method, "http://example.com/", in)
				req.Header.Set("Content-Type", test.contentType)
				transport := transportOn(dial())
				defer transport.CloseIdleConnections()
				resp, err := transport.RoundTrip(req)
				if err != nil {
					t.Error(err)
					return
				}
				defer resp.Body.Close()
				lines := bufio.NewReader(resp.Body)
				greeting, _ := lines.ReadString('\n')
				fmt.Fprint(out, "how are you\n")
				echo, _ := lines.ReadString('\n')
				out.Close()
				if greeting != "hello\n" || echo != "how are you\n" {
					t.Errorf("got %q and %q", greeting, echo)
				}
			})
		})
	}
}
