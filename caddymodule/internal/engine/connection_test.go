package engine_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// tests/requests/refused_upload_test.go has the same over sockets, beside Caddy's own respond.

// A client is connected to a site that refuses all its requests.
type client struct {
	net.Conn
	*bufio.Reader
	closed chan time.Duration // after how long the server has closed the connection
}

func (c client) Read(p []byte) (int, error) { return c.Reader.Read(p) }

// connect runs Caddy's server with directives in virtual time, and connects to it.
func connect(t *testing.T, directives string) client {
	t.Helper()
	s := servertest.Run(t, "http:// {\nroute {\n"+directives+"\n}\nhandle_errors {\nrespond \"own {http.request.body}\" 429\n}\n}")
	s.Do(servertest.Request(servertest.Someone, "http://x/"))
	c := client{closed: make(chan time.Duration, 1)}
	listener, began := make(servertest.Conns, 1), time.Now()
	server := &http.Server{Handler: s.Server, ReadHeaderTimeout: time.Minute, IdleTimeout: 5 * time.Minute, ConnState: func(_ net.Conn, state http.ConnState) {
		if state == http.StateClosed {
			c.closed <- time.Since(began)
		}
	}}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { server.Close() })
	var there net.Conn
	c.Conn, there = net.Pipe()
	c.Reader = bufio.NewReader(c.Conn)
	t.Cleanup(func() { c.Close() })
	listener <- there
	return c
}

// answer reads an answer, and returns its body.
func (c client) answer() (*http.Response, string, error) {
	resp, err := http.ReadResponse(c.Reader, nil)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp, string(body), err
}

const (
	refused  = "throttle z host 1 1/d\nrespond ok"
	refuses5 = "throttle {\nzone z {\nkey host\nlimit 1 1/d\nrefusal {\nstatus 503\n}\n}\n}\nrespond ok"
	byRoute  = "throttle {\nzone z {\nkey host\nlimit 1 1/d\nrefusal error\n}\n}\nrespond ok"
)

// TestStall: no client holds a connection for much longer than a minute, whatever it sends.
func TestStall(t *testing.T) {
	const header = "POST / HTTP/1.1\r\nHost: x\r\n"
	for _, test := range []struct {
		name, site, request string
		every               time.Duration // between more bytes, if any
		status              int
		answered, closed    time.Duration // at most
	}{
		{"nothing", refused, header + "Content-Length: 1000\r\n\r\n", 0, 429, time.Minute, 61 * time.Second},
		{"nothing, 503", refuses5, header + "Content-Length: 1000\r\n\r\n", 0, 503, time.Minute, 61 * time.Second},
		{"nothing, long", refused, header + "Content-Length: 5000000\r\n\r\n", 0, 429, time.Minute, 61 * time.Second},
		{"nothing, chunked", refused, header + "Transfer-Encoding: chunked\r\n\r\n", 0, 429, time.Minute, 61 * time.Second},
		{"nothing, closing", refused, header + "Connection: close\r\nContent-Length: 1000\r\n\r\n", 0, 429, time.Minute, 61 * time.Second},
		{"nothing, 1.0", refused, "POST / HTTP/1.0\r\nHost: x\r\nContent-Length: 1000\r\n\r\n", 0, 429, time.Minute, 61 * time.Second},
		{"expects", refused, header + "Expect: 100-continue\r\nContent-Length: 1000\r\n\r\n", 0, 429, 0, 61 * time.Second},
		{"expects, long", refused, header + "Expect: 100-continue\r\nContent-Length: 5000000\r\n\r\n", 0, 429, 0, time.Second},
		{"a byte a second", refused, header + "Content-Length: 1000\r\n\r\n", time.Second, 429, time.Minute, 61 * time.Second},
		{"without end", refused, header + "Content-Length: 5000000\r\n\r\n", 1, 429, time.Second, 2 * time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, began := connect(t, test.site), time.Now()
				var sending sync.WaitGroup
				sending.Go(func() {
					_, err := io.WriteString(c, test.request)
					piece := "x"
					if test.every == 1 {
						piece = strings.Repeat(piece, 10_000)
					}
					for test.every > 0 && err == nil {
						time.Sleep(test.every)
						_, err = io.WriteString(c, piece)
					}
				})
				resp, _, err := c.answer()
				took := time.Since(began)
				check.That(t, err == nil && resp.StatusCode == test.status && took <= test.answered, "got %v, %v after %v, want %d within %v", resp, err, took, test.status, test.answered)
				took = <-c.closed
				check.That(t, took <= test.closed, "got the connection closed after %v, want %v", took, test.closed)
				c.Close()
				sending.Wait()
			})
		})
	}
}

func TestClientThatReadsNothingHoldsNoConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := connect(t, refused)
		fmt.Fprint(c, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx")
		took := <-c.closed
		check.That(t, took <= 2*time.Minute, "got the connection closed after %v, want within Caddy's timeouts", took)
	})
}

// TestKeepAlive: a new connection costs more than the refusal, with TLS in particular.
func TestKeepAlive(t *testing.T) {
	for name, request := range map[string]string{
		"GET":      "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
		"empty":    "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
		"a byte":   "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx",
		"200 kB":   "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\n" + strings.Repeat("x", 200_000),
		"a chunk":  "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
		"1.0":      "POST / HTTP/1.0\r\nHost: x\r\nConnection: keep-alive\r\nContent-Length: 1\r\n\r\nx",
		"trailers": "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTrailer: A\r\n\r\n3\r\nabc\r\n0\r\nA: b\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := connect(t, refused)
				go func() { _, _ = io.WriteString(c, strings.Repeat(request, 5)) }()
				for i := range 5 {
					resp, _, err := c.answer()
					check.Assume(t, err == nil && resp.StatusCode == http.StatusTooManyRequests && !resp.Close, "request %d: got %v, %v, want 429 and the connection kept", i+1, resp, err)
				}
			})
		})
	}
}

// TestErrorRouteReadsBody: one that proxies wants it.
func TestErrorRouteReadsBody(t *testing.T) {
	for _, headers := range []string{"", "Connection: close\r\n"} {
		synctest.Test(t, func(t *testing.T) {
			c := connect(t, byRoute)
			go fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: x\r\n%sContent-Length: 4\r\n\r\nbody", headers)
			resp, body, err := c.answer()
			check.That(t, err == nil && resp.StatusCode == http.StatusTooManyRequests && body == "own body", "got %v, %q, %v, want the body", resp, body, err)
			c.Close()
			<-c.closed
		})
	}
}
