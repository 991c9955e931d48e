package servertest

import (
	"io"
	"net"
	"strconv"
	"sync"
	"testing"
)

// PostgresProxy is a TCP proxy in front of a server. It can drop replies.
type PostgresProxy struct {
	// Swallow is called with each piece of a reply before it is passed on. If it
	// returns true, the piece is dropped and the connection is closed. Many
	// goroutines call it.
	Swallow func(piece []byte) bool

	port     int
	listener net.Listener
	working  sync.WaitGroup

	mu     sync.Mutex
	closed bool
	conns  map[net.Conn]struct{}
}

// Proxy starts a proxy in front of the server, which ends with the test.
func (s *Postgres) Proxy(tb testing.TB, swallow func(piece []byte) bool) *PostgresProxy {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	p := &PostgresProxy{Swallow: swallow, port: l.Addr().(*net.TCPAddr).Port, listener: l, conns: make(map[net.Conn]struct{})}
	p.working.Go(func() { p.accept(net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Port))) })
	tb.Cleanup(p.close)
	return p
}

// URL returns the superuser's connection URL through the proxy.
func (p *PostgresProxy) URL() string {
	return postgresURL(p.port, "postgres", PostgresPassword, "postgres")
}

func (p *PostgresProxy) accept(server string) {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		upstream, err := net.Dial("tcp", server)
		if err != nil {
			_ = client.Close()
			continue
		}
		if !p.keep(client, upstream) {
			return
		}
		p.working.Go(func() {
			_, _ = io.Copy(upstream, client)
			p.drop(client, upstream)
		})
		p.working.Go(func() {
			p.answers(client, upstream)
			p.drop(client, upstream)
		})
	}
}

// answers passes replies on until one is swallowed.
func (p *PostgresProxy) answers(client, upstream net.Conn) {
	piece := make([]byte, 64<<10)
	for {
		n, err := upstream.Read(piece)
		if n > 0 && p.Swallow(piece[:n]) {
			return
		}
		if n > 0 {
			if _, err := client.Write(piece[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (p *PostgresProxy) keep(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		if p.closed {
			_ = c.Close()
		} else {
			p.conns[c] = struct{}{}
		}
	}
	return !p.closed
}

func (p *PostgresProxy) drop(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
		delete(p.conns, c)
	}
}

func (p *PostgresProxy) close() {
	_ = p.listener.Close()
	p.mu.Lock()
	p.closed = true
	for c := range p.conns {
		_ = c.Close()
	}
	p.mu.Unlock()
	p.working.Wait()
}
