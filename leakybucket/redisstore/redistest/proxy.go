package redistest

import (
	"io"
	"net"
	"sync"
	"testing"
)

// A Proxy stands between a client and a server, and may lose what the server
// answers.
type Proxy struct {
	Addr string

	listener net.Listener

	mu     sync.Mutex
	server string
	lose   func() bool
	conns  map[net.Conn]bool
}

// StartProxy starts a proxy to a server. Each time that bytes come from the
// server, lose is asked whether to lose them: then both connections are closed,
// as if the network had failed after the server had done what it was asked.
func StartProxy(tb testing.TB, server string, lose func() bool) *Proxy {
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

// Lead leads later connections to another server.
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
		go func() {
			_, _ = io.Copy(server, client)
			p.drop(client, server)
		}()
		go func() {
			p.answer(client, server)
			p.drop(client, server)
		}()
	}
}

// answer passes on what the server says, until some of it is lost.
func (p *Proxy) answer(client, server net.Conn) {
	buf := make([]byte, 64<<10)
	for {
		n, err := server.Read(buf)
		if err != nil || p.lose() {
			return
		}
		if _, err := client.Write(buf[:n]); err != nil {
			return
		}
	}
}

func (p *Proxy) keep(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range conns {
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
	for conn := range p.conns {
		_ = conn.Close()
	}
}
