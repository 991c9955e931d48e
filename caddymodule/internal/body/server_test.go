package body

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

var (
	alice = netip.MustParsePrefix("203.0.113.1/32")
	bob   = netip.MustParsePrefix("203.0.113.2/32")
)

// protocols are those that a test's servers speak without TLS.
var protocols = []string{"h1", "h2"}

func both() *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	p.SetUnencryptedHTTP2(true)
	return p
}

// listen serves over real sockets.
func listen(t testing.TB, handler http.Handler) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.Config.Protocols = both()
	server.Start()
	t.Cleanup(server.Close)
	return server
}

// clientOf speaks one protocol.
func clientOf(t testing.TB, protocol string) *http.Client {
	t.Helper()
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetHTTP1(protocol == "h1")
	transport.Protocols.SetUnencryptedHTTP2(protocol == "h2")
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// randomBytes are always the same, and look like nothing in particular.
func randomBytes(n int) string {
	random := rand.NewChaCha8([32]byte{byte(n)})
	data := make([]byte, n)
	random.Read(data)
	return string(data)
}

func answerOf(t *testing.T, client *http.Client, req *http.Request) string {
	t.Helper()
	resp := check.Must(client.Do(req))(t)
	defer resp.Body.Close()
	body := check.Must(io.ReadAll(resp.Body))(t)
	return string(body)
}

// ask sends what no client in Go would, and waits for the end of the answer.
func ask(t *testing.T, address, request string) {
	t.Helper()
	conn := check.Must(net.Dial("tcp", address))(t)
	defer conn.Close()
	check.Must(io.WriteString(conn, request))(t)
	conn.(*net.TCPConn).CloseWrite()
	_, _ = io.Copy(io.Discard, conn)
}

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

func (b *slowBody) Read(p []byte) (int, error) {
	time.Sleep(b.each)
	if b.left == "" {
		return 0, io.EOF
	}
	n := copy(p[:1], b.left)
	b.left = b.left[n:]
	return n, nil
}

// slowByte is how long a slow byte takes.
const slowByte = 900 * time.Millisecond

// slowPost sends a body of unknown length, and reads the answer to its end.
func slowPost(ctx context.Context, conn net.Conn, protocol string, body io.Reader) {
	transport := &http.Transport{
		DialContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil },
		Protocols:   new(http.Protocols),
	}
	transport.Protocols.SetUnencryptedHTTP2(true)
	defer transport.CloseIdleConnections()
	send := transport.RoundTrip
	if protocol == "h1" {
		send = func(req *http.Request) (*http.Response, error) { return slowPost1(conn, req) }
	}
	req, _ := http.NewRequestWithContext(ctx, "POST", "http://example.com/", body)
	if resp, err := send(req); err == nil {
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
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

// watched is a body that is not to be read.
type watched struct{ read bool }

func (w *watched) Read([]byte) (int, error) {
	w.read = true
	return 0, io.EOF
}

func (w *watched) Close() error { return nil }

// A mute body sends nothing until it is closed.
type mute struct{ closed chan struct{} }

func (m mute) Read([]byte) (int, error) {
	<-m.closed
	return 0, io.ErrUnexpectedEOF
}

func (m mute) Close() error { return nil }
