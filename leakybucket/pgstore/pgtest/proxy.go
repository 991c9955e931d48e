package pgtest

import (
	"io"
	"net"
	"strconv"
	"sync"
	"testing"
)

// A Proxy stands between a client and a server, and loses what the server says
// when it is told to.
type Proxy struct {
	// Swallow is asked before a piece of what the server has sent goes to the
	// client. If it says so, the client gets neither that nor anything after it,
	// and its connection ends. It is called by many goroutines.
	Swallow func(piece []byte) bool

	port     int
	listener net.Listener
	working  sync.WaitGroup

	mu     sync.Mutex
	closed bool
	conns  map[net.Conn]struct{}
}

// Proxy starts a proxy before the server.
func (s *Server) Proxy(tb testing.TB, swallow func(piece []byte) bool) *Proxy {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	p := &Proxy{Swallow: swallow, port: l.Addr().(*net.TCPAddr).Port, listener: l, conns: make(map[net.Conn]struct{})}
	p.working.Go(func() { p.accept(net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Port))) })
	tb.Cleanup(p.close)
	return p
}

// URL returns how the superuser connects through the proxy.
func (p *Proxy) URL() string { return urlTo(p.port, "postgres", Password, "postgres") }

func (p *Proxy) accept(server string) {
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

// answers passes on what the server says, as long as nothing is swallowed.
func (p *Proxy) answers(client, upstream net.Conn) {
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

func (p *Proxy) keep(conns ...net.Conn) bool {
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

func (p *Proxy) drop(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
		delete(p.conns, c)
	}
}

func (p *Proxy) close() {
	_ = p.listener.Close()
	p.mu.Lock()
	p.closed = true
	for c := range p.conns {
		_ = c.Close()
	}
	p.mu.Unlock()
	p.working.Wait()
}
