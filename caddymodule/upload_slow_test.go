package caddymodule

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"
	"testing"
	"time"
)

// slowSite runs a test in virtual time against a server that is reached by
// pipes. All goroutines must have ended when the test has.
func slowSite(t *testing.T, directives string, f func(t *testing.T, s *settleSite, dial func() net.Conn)) {
	t.Helper()
	inSettleBubble(t, func(t *testing.T) {
		s := newSettleSite(t, directives)
		s.client = "203.0.113.7"
		pipes := slowPipes{conns: make(chan net.Conn), closed: make(chan struct{})}
		server := &http.Server{Handler: s, Protocols: new(http.Protocols)}
		server.Protocols.SetHTTP1(true)
		server.Protocols.SetUnencryptedHTTP2(true)
		go server.Serve(pipes)
		f(t, s, func() net.Conn {
			here, there := net.Pipe()
			pipes.conns <- slowPipe{there}
			return here
		})
		s.wait()
		server.Close()
		time.Sleep(2 * time.Second) // clients see at their next byte that it is over
	})
}

const slowZone = `throttle {
	zone settled {
		capacity 1000
		leak 1/d
		cost body_items
		unread_body_cost 30
	}
}
settle_upstream`

type slowPipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (p slowPipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.conns:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p slowPipes) Close() error {
	close(p.closed)
	return nil
}

func (p slowPipes) Addr() net.Addr { return &net.TCPAddr{} }

// A slowPipe is a connection from a client that has an address.
type slowPipe struct{ net.Conn }

func (slowPipe) RemoteAddr() net.Addr {
	return &net.TCPAddr{IP: net.IPv4(203, 0, 113, 7), Port: 1}
}

// slowBody sends a byte every 900 milliseconds, which is never when patience
// ends.
type slowBody struct{ left string }

const slowByte = 900 * time.Millisecond

func (b *slowBody) Read(p []byte) (int, error) {
	time.Sleep(slowByte)
	if b.left == "" {
		return 0, io.EOF
	}
	n := copy(p[:1], b.left)
	b.left = b.left[n:]
	return n, nil
}

// slowPost sends a body of unknown length, and reads the answer to its end.
func slowPost(ctx context.Context, conn net.Conn, protocol string, body io.Reader) (resp *http.Response, answer string, err error) {
	req, err := http.NewRequestWithContext(ctx, "POST", "http://example.com/", body)
	if err != nil {
		return nil, "", err
	}
	if protocol == "h1" {
		resp, err = slowPost1(conn, req)
	} else {
		transport := &http.Transport{
			DialContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil },
			Protocols:   new(http.Protocols),
		}
		transport.Protocols.SetUnencryptedHTTP2(true)
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
		fmt.Fprint(conn, "POST / HTTP/1.1\r\nHost: example.com\r\nTransfer-Encoding: chunked\r\n\r\n")
		chunks := httputil.NewChunkedWriter(conn)
		if _, err := io.Copy(chunks, req.Body); err == nil {
			chunks.Close()
			fmt.Fprint(conn, "\r\n")
		}
	}()
	return http.ReadResponse(bufio.NewReader(conn), req)
}

// TestASlowBodyIsWaitedForOnlySoLong: it costs as if it could not be read, and
// the upstream gets it as it comes.
func TestASlowBodyIsWaitedForOnlySoLong(t *testing.T) {
	for _, protocol := range []string{"h1", "h2"} {
		for _, test := range []struct {
			bytes       int
			asked, done time.Duration // when the upstream is asked, and has everything
			want        float64
		}{
			{3, 4 * slowByte, 4 * slowByte, 1}, // read in time
			{30, patience, 31 * slowByte, 30},
		} {
			t.Run(fmt.Sprintf("%s, %d bytes", protocol, test.bytes), func(t *testing.T) {
				slowSite(t, slowZone, func(t *testing.T, s *settleSite, dial func() net.Conn) {
					began := time.Now()
					body := "[1]" + strings.Repeat(" ", test.bytes-3)
					s.serve = func(w http.ResponseWriter, r *http.Request) error {
						if asked := time.Since(began); asked != test.asked {
							t.Errorf("the upstream was asked after %v, want %v", asked, test.asked)
						}
						first := make([]byte, 1)
						n, err := r.Body.Read(first)
						if waited := time.Since(began) - test.asked; n != 1 || waited > slowByte {
							t.Errorf("the upstream got %d bytes and %v after another %v, want what there was", n, err, waited)
						}
						w.Write(first)
						_, err = io.Copy(w, r.Body)
						return err
					}
					_, got, err := slowPost(t.Context(), dial(), protocol, &slowBody{body})
					if err != nil {
						t.Error(err)
					}
					if got != body || time.Since(began) != test.done {
						t.Errorf("got %q after %v, want %q after %v", got, time.Since(began), body, test.done)
					}
					s.wantLevel("settled", test.want)
				})
			})
		}
	}
}

// TestAnUpstreamNeedNotWaitForASlowBody: when it has answered, nobody reads any
// more.
func TestAnUpstreamNeedNotWaitForASlowBody(t *testing.T) {
	for _, protocol := range []string{"h1", "h2"} {
		for _, refused := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, refused %v", protocol, refused), func(t *testing.T) {
				zone, want := slowZone, http.StatusTeapot
				if refused {
					// The least fits, what it costs unread does not.
					zone = strings.Replace(slowZone, "capacity 1000", "capacity 40", 1)
					want = http.StatusTooManyRequests
				}
				slowSite(t, zone, func(t *testing.T, s *settleSite, dial func() net.Conn) {
					s.serve = settleSays(http.StatusTeapot)
					began := time.Now()
					for n := range 2 {
						ctx, stop := context.WithCancel(t.Context())
						resp, _, err := slowPost(ctx, dial(), protocol, &slowBody{strings.Repeat(" ", 1000)})
						if err != nil || (!refused || n == 1) && resp.StatusCode != want {
							t.Errorf("request %d: got %v, %v, want %v", n+1, resp, err, want)
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
}

// TestABodyThatNeverBegins is a client that sends the header and waits.
func TestABodyThatNeverBegins(t *testing.T) {
	slowSite(t, slowZone, func(t *testing.T, s *settleSite, dial func() net.Conn) {
		began := time.Now()
		s.serve = func(w http.ResponseWriter, _ *http.Request) error {
			if asked := time.Since(began); asked != patience {
				t.Errorf("the upstream was asked after %v, want %v", asked, patience)
			}
			w.WriteHeader(http.StatusTeapot)
			return nil
		}
		conn := dial()
		defer conn.Close()
		fmt.Fprint(conn, "POST / HTTP/1.1\r\nHost: example.com\r\nContent-Length: 10\r\n\r\n")
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || resp.StatusCode != http.StatusTeapot {
			t.Errorf("got %v, %v, want 418", resp, err)
		}
		if took := time.Since(began); took != patience {
			t.Errorf("got the answer after %v, want %v", took, patience)
		}
		s.wantLevel("settled", 30)
	})
}

// TestAClientThatLeavesWhileItsBodyIsAwaited frees what it held at once, and is
// charged all the same.
func TestAClientThatLeavesWhileItsBodyIsAwaited(t *testing.T) {
	for _, protocol := range []string{"h1", "h2"} {
		t.Run(protocol, func(t *testing.T) {
			slowSite(t, slowZone, func(t *testing.T, s *settleSite, dial func() net.Conn) {
				s.serve = settleSays(200)
				ctx, stop := context.WithTimeout(t.Context(), 2500*time.Millisecond)
				defer stop()
				began := time.Now()
				if resp, _, err := slowPost(ctx, dial(), protocol, &slowBody{strings.Repeat(" ", 100)}); err == nil {
					t.Errorf("got %v, want nothing, as nobody waits for it", resp.Status)
				}
				s.wait()
				if took := time.Since(began); took > 3*time.Second {
					t.Errorf("got the request served after %v, want it when the client has left", took)
				}
				s.wantLevel("settled", 30)
			})
		})
	}
}

// TestARefusalDoesNotWaitForTheBody: who has a long way to go, or has asked
// whether to go at all, is told at once.
func TestARefusalDoesNotWaitForTheBody(t *testing.T) {
	zone := strings.Replace(slowZone, "capacity 1000", "capacity 1000\noverride 203.0.113.7 deny", 1)
	for _, header := range []string{
		"Transfer-Encoding: chunked",
		"Content-Length: 100000",
		"Content-Length: 10\r\nExpect: 100-continue",
	} {
		t.Run(header, func(t *testing.T) {
			slowSite(t, zone, func(t *testing.T, _ *settleSite, dial func() net.Conn) {
				began := time.Now()
				conn := dial()
				defer conn.Close()
				fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: example.com\r\n%s\r\n\r\n", header)
				resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
				if err != nil {
					t.Error(err)
					return
				}
				io.Copy(io.Discard, resp.Body)
				if took := time.Since(began); resp.StatusCode != http.StatusTooManyRequests || !resp.Close || took != 0 {
					t.Errorf("got %v, closing %v, after %v, want 429 and the connection closed at once", resp.Status, resp.Close, took)
				}
			})
		})
	}
}
