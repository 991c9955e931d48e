// Package listener is throttle_blocked, the listener wrapper and the packet-conn wrapper. Begin
// with [DropConnections]; whom they drop is in [clients].
package listener

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"reflect"
	"sync"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/net/ipv4"

	"github.com/caddy-throttle/caddy-throttle/caddymodule"
	bucketkey "github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

func init() {
	caddy.RegisterModule(DropConnections{})
	caddy.RegisterModule(DropPackets{})
}

// dropList is whose connections are dropped. There is one for the process, because the sockets
// of HTTP/3 outlive configs, with the wrapper they began with.
var dropList = newClients()

// dropped counts for the process, like all metrics of throttle, so that a reload keeps it.
var (
	dropped = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "caddy", Subsystem: "throttle", Name: "dropped_connections_total",
		Help: "TCP connections and QUIC packets of blocked or banned clients, dropped before the handshake.",
	}, []string{"transport"})

	droppedTCP  = dropped.WithLabelValues("tcp")
	droppedQUIC = dropped.WithLabelValues("quic")
)

// DropConnections is a listener wrapper that closes TCP connections of clients that are
// refused anyway, by a block with `everywhere` or by a ban, before TLS costs anything. A
// client is dropped only after the handler has refused it once, and only if no proxy is
// between. Put it before `tls`. Default: these clients get an answer.
type DropConnections struct {
	dropper
	logger *zap.Logger
	warned *sync.Once
}

// DropPackets is the packet-conn wrapper for HTTP/3 that drops the first packets of
// QUIC connections of the clients whose TCP connections the listener wrapper
// `throttle_blocked` closes. Default: these clients get an answer.
type DropPackets struct{ dropper }

// CaddyModule returns the Caddy module information.
func (DropConnections) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "caddy.listeners.throttle_blocked", New: func() caddy.Module { return new(DropConnections) }}
}

// CaddyModule returns the Caddy module information.
func (DropPackets) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "caddy.packetconns.throttle_blocked", New: func() caddy.Module { return new(DropPackets) }}
}

// Provision lets the handlers of this config add clients.
func (d *DropConnections) Provision(ctx caddy.Context) error {
	d.logger, d.warned = ctx.Logger(), new(sync.Once)
	return d.dropper.Provision(ctx)
}

// A dropper is what both wrappers have in common.
type dropper struct{}

// Provision lets the handlers of this config add clients.
func (dropper) Provision(ctx caddy.Context) error {
	throttle, err := caddymodule.Join(ctx)
	if err != nil {
		return err
	}
	throttle.Watch(dropList)
	if err = ctx.GetMetricsRegistry().Register(dropped); errors.As(err, new(prometheus.AlreadyRegisteredError)) {
		return nil // by another wrapper
	}
	return err
}

// WrapListener implements caddy.ListenerWrapper.
func (d *DropConnections) WrapListener(l net.Listener) net.Listener {
	return &dropListener{Listener: l, d: d}
}

// A dropListener closes connections of clients on the list, and returns others as they are.
type dropListener struct {
	net.Listener
	d *DropConnections
}

// Accept implements net.Listener. An error would end the server, so it goes on after a
// connection that it has closed.
func (l *dropListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil || !dropList.some.Load() {
			return conn, err
		}
		inner, secure := conn, false
		if c, ok := conn.(*tls.Conn); ok { // of which nothing was read yet
			inner, secure = c.NetConn(), true
		}
		switch _, plain := inner.(*net.TCPConn); {
		case plain && drop(inner):
		case plain:
			return conn, nil
		case secure:
			l.d.warned.Do(func() {
				l.d.logger.Warn("throttle_blocked drops nothing, because it comes after tls and behind another listener wrapper: put it before tls")
			})
			return conn, nil
		default:
			return &lateConn{conn, sync.OnceValue(func() bool { return drop(conn) })}, nil
		}
	}
}

// drops reports whether connections from an address are to be dropped.
func drops(address net.Addr) bool {
	peer, ok := address.(interface{ AddrPort() netip.AddrPort }) // as those of TCP and UDP have
	if !ok {
		return false
	}
	client := bucketkey.Unmap(peer.AddrPort().Addr())
	r, found := dropList.find(client)
	return found && r.Holds(client)
}

// drop closes a connection at once if it is to be dropped, counts it, and reports that.
func drop(conn net.Conn) bool {
	if !drops(conn.RemoteAddr()) {
		return false
	}
	droppedTCP.Inc()
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // nothing is left to wait for
	}
	_ = conn.Close()
	return true
}

// A lateConn finds out at the first read whether it is to be dropped. Behind the PROXY
// protocol, the address of the client must be read from the connection, for which no
// other connection may wait.
type lateConn struct {
	net.Conn
	gone func() bool
}

// Read implements net.Conn.
func (c *lateConn) Read(p []byte) (int, error) {
	if c.gone() {
		return 0, io.EOF
	}
	return c.Conn.Read(p)
}

// ReadFrom implements io.ReaderFrom, so that the connection can send files by itself.
func (c *lateConn) ReadFrom(r io.Reader) (int64, error) { return io.Copy(c.Conn, r) }

// WrapPacketConn implements caddy.PacketConnWrapper. It looks for the socket within Caddy's
// own connections alone: what another wrapper reads must go through it.
func (*DropPackets) WrapPacketConn(conn net.PacketConn) net.PacketConn {
	for inner := conn; ; {
		if udp, ok := inner.(*net.UDPConn); ok {
			return &dropUDPConn{UDPConn: udp, batch: ipv4.NewPacketConn(udp)}
		}
		outer, ok := inner.(interface{ Unwrap() net.PacketConn })
		if !ok || reflect.Indirect(reflect.ValueOf(inner)).Type().PkgPath() != reflect.TypeFor[caddy.Context]().PkgPath() { // it is not Caddy's own
			return &dropPacketConn{conn}
		}
		inner = outer.Unwrap()
	}
}

// dropsPacket reports whether a packet is to be dropped, and counts it then.
func dropsPacket(packet []byte, from net.Addr) bool {
	if !dropList.some.Load() || !opensConnection(packet) || !drops(from) {
		return false
	}
	droppedQUIC.Inc()
	return true
}

// A dropPacketConn drops packets of any connection.
type dropPacketConn struct{ net.PacketConn }

// ReadFrom implements net.PacketConn.
func (c *dropPacketConn) ReadFrom(p []byte) (int, net.Addr, error) {
	for {
		n, from, err := c.PacketConn.ReadFrom(p)
		if err != nil || !dropsPacket(p[:n], from) {
			return n, from, err
		}
	}
}

// A dropUDPConn drops packets of a UDP socket. quic-go keeps reading it in batches.
type dropUDPConn struct {
	*net.UDPConn
	batch *ipv4.PacketConn
}

// ReadFrom implements net.PacketConn.
func (c *dropUDPConn) ReadFrom(p []byte) (int, net.Addr, error) {
	return (&dropPacketConn{c.UDPConn}).ReadFrom(p)
}

// ReadBatch empties the packets that are to be dropped. quic-go skips empty ones.
func (c *dropUDPConn) ReadBatch(packets []ipv4.Message, flags int) (int, error) {
	n, err := c.batch.ReadBatch(packets, flags)
	for i := range packets[:max(0, n)] {
		if p := &packets[i]; dropsPacket(p.Buffers[0][:p.N], p.Addr) {
			p.N = 0
		}
	}
	return n, err
}

// UnmarshalCaddyfile sets up the wrapper from Caddyfile tokens. Syntax:
//
//	throttle_blocked
func (dropper) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the name
	if d.NextArg() || d.NextBlock(0) {
		return d.Errf("unexpected %q after throttle_blocked: a wrapper takes no word and no block", d.Val())
	}
	return nil
}

// Interface guards
var (
	_ caddy.Provisioner       = (*DropConnections)(nil)
	_ caddy.ListenerWrapper   = (*DropConnections)(nil)
	_ caddyfile.Unmarshaler   = (*DropConnections)(nil)
	_ caddy.Provisioner       = (*DropPackets)(nil)
	_ caddy.PacketConnWrapper = (*DropPackets)(nil)
	_ caddyfile.Unmarshaler   = (*DropPackets)(nil)
	_ io.ReaderFrom           = (*lateConn)(nil)
)
