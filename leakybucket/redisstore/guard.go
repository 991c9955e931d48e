package redisstore

import (
	"errors"
	"net"
)

// A guard stands between rueidis and a connection. A server that answers what
// nobody asked, or announces a text of minus five bytes, makes rueidis panic in
// a goroutine where nobody can recover; a guard ends the connection before.
type guard struct {
	net.Conn
	asked, answered frames

	// Subscribed connections, to a Sentinel, get messages that nobody asked for.
	pushes bool
}

var errUnasked = errors.New("reading from redis: got what is no reply to anything asked")

// Write counts what is asked before it can be answered.
func (g *guard) Write(b []byte) (int, error) {
	if err := g.asked.feed(b); err != nil {
		return 0, err
	}
	return g.Conn.Write(b)
}

func (g *guard) Read(b []byte) (int, error) {
	n, err := g.Conn.Read(b)
	if fault := g.answered.feed(b[:n]); fault != nil {
		_ = g.Close()
		return 0, fault
	}
	if g.answered.complete.Load() > g.asked.complete.Load() || g.answered.pushes > 0 && !g.pushes {
		_ = g.Close()
		return 0, errUnasked
	}
	return n, err
}
