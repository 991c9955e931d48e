package servertest

import (
	"net"
	"sync"
	"testing"
)

// A Proxy is a TCP proxy in front of a server of any kind. It can lose replies,
// and redirect new connections to another server. It is safe for concurrent use.
type Proxy struct {
	Addr string // host:port

	listener net.Listener
	lose     func(reply []byte) bool

	mu     sync.Mutex
	closed bool
	server string
	conns  map[net.Conn]bool
}

// StartProxy starts a proxy to a server's address and stops it when the test
// ends. If lose is not nil, it is called with each piece of a reply. If it
// returns true, the client gets neither that piece nor any later one: both
// connections are closed, as if the network had failed after the server did its
// work.
func StartProxy(tb testing.TB, server string, lose func(reply []byte) bool) *Proxy {
	tb.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatalf("listening: %v", err)
	}
	p := &Proxy{Addr: listener.Addr().String(), listener: listener, server: server, lose: lose, conns: make(map[net.Conn]bool)}
	tb.Cleanup(p.close)
	go p.accept()
	return p
}

// Lead directs later connections to another server. Open connections stay.
func (p *Proxy) Lead(server string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.server = server
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		addr := p.server
		p.mu.Unlock()
		server, err := net.Dial("tcp", addr)
		if err != nil {
			_ = client.Close()
			continue
		}
		p.keep(client, server)
		go p.forward(server, client, nil)
		go p.forward(client, server, p.lose)
	}
}

// forward copies what from sends, until either connection ends or lose says so.
func (p *Proxy) forward(to, from net.Conn, lose func([]byte) bool) {
	defer p.drop(to, from)
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 && lose != nil && lose(buf[:n]) {
			return
		}
		if _, errWrite := to.Write(buf[:n]); err != nil || errWrite != nil {
			return
		}
	}
}

func (p *Proxy) keep(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range conns {
		if p.closed {
			_ = conn.Close()
		}
		p.conns[conn] = true
	}
}

func (p *Proxy) drop(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range conns {
		_ = conn.Close()
		delete(p.conns, conn)
	}
}

func (p *Proxy) close() {
	_ = p.listener.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for conn := range p.conns {
		_ = conn.Close()
	}
}
