package caddymodule

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/netip"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
	"golang.org/x/net/ipv4"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/blocked"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/rule"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	bucketkey "github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

func init() {
	caddy.RegisterModule(DropConnections{})
	caddy.RegisterModule(DropPackets{})
}

// DropConnections is a listener wrapper that closes TCP connections of clients that are
// out anyway, before TLS costs anything: those that a block with `everywhere`, or a ban at
// run time, holds. A client is dropped only after the handler has refused it once, and
// only if no proxy is between. Put it before `tls`. Default: clients that are out are
// answered.
type DropConnections struct {
	logger *zap.Logger
	warned *sync.Once
}

// DropPackets is the packet-conn wrapper for HTTP/3 that drops the first packets of
// QUIC connections of the clients whose TCP connections the listener wrapper
// `throttle_blocked` closes. Default: clients that are out are answered.
type DropPackets struct{}

// CaddyModule returns the Caddy module information.
func (DropConnections) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "caddy.listeners.throttle_blocked",
		New: func() caddy.Module { return new(DropConnections) },
	}
}

// CaddyModule returns the Caddy module information.
func (DropPackets) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "caddy.packetconns.throttle_blocked",
		New: func() caddy.Module { return new(DropPackets) },
	}
}

// Provision lets the handlers of this config add clients.
func (d *DropConnections) Provision(ctx caddy.Context) error {
	d.logger, d.warned = ctx.Logger(), new(sync.Once)
	return allowDrops(ctx)
}

// Provision lets the handlers of this config add clients.
func (d *DropPackets) Provision(ctx caddy.Context) error { return allowDrops(ctx) }

func allowDrops(ctx caddy.Context) error {
	app, err := ctx.App("throttle")
	if err != nil {
		return err
	}
	app.(*App).engine.drops = true
	return nil
}

// dropList is the clients whose connections are dropped. There is one for the process,
// because the sockets of HTTP/3 outlive configs, with the wrapper they began with.
var dropList = blocked.NewClients()

// lastConfig numbers configs. An entry of another config does not count, since this one
// may exempt the client or trust it as a proxy.
var lastConfig atomic.Uint64

var (
	droppedTCP  = telemetry.Dropped.WithLabelValues("tcp")
	droppedQUIC = telemetry.Dropped.WithLabelValues("quic")
)

// shouldDrop reports whether a connection from an address is to be dropped. The handler has
// added the client; whether its block or ban still holds is looked up each time.
func shouldDrop(address net.Addr) bool {
	if dropList.Empty() {
		return false
	}
	a := newestApp.Load()
	if a == nil || !a.drops {
		return false
	}
	peer, ok := addressOf(address)
	if !ok {
		return false
	}
	now := time.Now()
	e, found := dropList.Find(peer, a.configNumber.Load(), now)
	if !found {
		return false
	}
	overrides := a.overrides.Load()
	if overrides.AllShadow(now) {
		return false
	}
	if e.Block == nil {
		return overrides.Banned(peer, now) != nil
	}
	if overrides.Shadow(e.Block.Zone, now) {
		return false
	}
	if l := overrides.Limit(e.Block.Zone, e.Block.Key, now); l != nil && !l.Limits() {
		return false
	}
	_, runs, fresh := a.blocks.Find(e.Block)
	if runs && !fresh && a.shared != nil {
		confirmLater(*e.Block)
	}
	return runs
}

// addressOf returns the address of a peer as the list has it.
func addressOf(address net.Addr) (netip.Addr, bool) {
	var peer netip.AddrPort
	switch address := address.(type) {
	case *net.TCPAddr:
		peer = address.AddrPort()
	case *net.UDPAddr:
		peer = address.AddrPort()
	}
	return peer.Addr().Unmap().WithZone(""), peer.IsValid()
}

// confirming bounds the calls of the store that listeners cause. Another Caddy may have
// released the client.
var confirming = make(chan struct{}, 8)

// confirmLater asks the shared store whether a block still runs, if nobody has asked
// within a second. No connection waits for it.
func confirmLater(c leakybucket.Charge) {
	select {
	case confirming <- struct{}{}:
	default:
		return
	}
	go func() {
		defer func() { <-confirming }()
		if a, release := runningApp(); a != nil {
			defer release()
			a.blocks.Believe(a.ctx, &c, a.store)
		}
	}()
}

// addDropped adds the client of a request that is refused to those whose connections are
// dropped, if a block everywhere or a ban refuses it and nothing speaks against that. It
// returns false if the client is not dropped. config is the number of the config when the
// decision began.
func (a *engine) addDropped(r *http.Request, res *decision.Verdict, config uint64) bool {
	peer, direct := a.directPeer(r)
	if !direct {
		return false
	}
	o := droppedBy(res, peer)
	if o == nil || a.exemptsAnywhere(r) {
		return false
	}
	e, bits, longest := blocked.Entry{Config: config}, 64, time.Hour
	if a.exemptsSome {
		bits, longest = 128, exemptAgain // a neighbour may be exempt, or the client soon
	}
	if o.Reason() != rule.Banned {
		c := o.Bucket()
		e.Block, bits = &c, max(bits, o.Zone.Key.IPv6Bits)
	}
	now := time.Now()
	return dropList.Add(peer, bits, e, now.Add(min(o.Block, longest)), now)
}

// exemptAgain is how long clients are dropped if the config exempts some. What a matcher says
// may change, as when a crawler has been verified.
const exemptAgain = time.Minute

// droppedBy returns the outcome for which a client may be dropped, or nil.
func droppedBy(res *decision.Verdict, peer netip.Addr) *decision.Outcome {
	for i := range res.Outcomes {
		o := &res.Outcomes[i]
		if o.Decision() == decision.Refused && o.Block > 0 && (o.Reason() == rule.Banned || blocksOnly(o, peer)) {
			return o
		}
	}
	return nil
}

// forgetDropped has the handler refuse each client once more before it is dropped, since
// the config may treat it differently now. It is called once the change is in force: an
// entry that was made before has the old number.
func (a *engine) forgetDropped() { a.configNumber.Store(lastConfig.Add(1)) }

// blocksOnly reports whether an outcome has found a block that holds everywhere, of a key
// that is nothing but this client.
func blocksOnly(o *decision.Outcome, peer netip.Addr) bool {
	z := o.Zone
	bits := z.Key.IPv4Bits
	if peer.Is6() {
		bits = z.Key.IPv6Bits
	}
	return z.Everywhere && (peer.Is4() && bits == 32 || peer.Is6() && bits >= 64) &&
		o.Key == bucketkey.ClientPrefix(peer, z.Key.IPv4Bits, z.Key.IPv6Bits).Addr().String()
}

// exemptsAnywhere reports whether any zone exempts a request, which the global options do
// not.
func (a *engine) exemptsAnywhere(r *http.Request) bool {
	if !a.exemptsSome {
		return false
	}
	s := rule.NewSubject(r)
	for _, z := range a.zones {
		if exempt, err := z.Exempts(&s); err != nil || exempt {
			return true
		}
	}
	return false
}

// directPeer returns the address of the peer if it is the client itself: it is no trusted
// proxy, it is the client's address as Caddy knows it, it has completed the handshake, and
// it does not forward what others ask.
func (a *engine) directPeer(r *http.Request) (peer netip.Addr, direct bool) {
	if r.TLS != nil && !r.TLS.HandshakeComplete {
		return peer, false
	}
	ctx := r.Context()
	if trusted, _ := caddyhttp.GetVar(ctx, caddyhttp.TrustedProxyVarKey).(bool); trusted {
		return peer, false
	}
	port, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return peer, false
	}
	peer = port.Addr().Unmap().WithZone("")
	text, _ := caddyhttp.GetVar(ctx, caddyhttp.ClientIPVarKey).(string)
	client, err := netip.ParseAddr(text)
	return peer, err == nil && client.Unmap().WithZone("") == peer && !forwards(r)
}

// noteProxy notes that the peer of a request forwards what others ask, if it does. A proxy
// that is missing in trusted_proxies is the client of all its requests, and must not be
// dropped.
func (a *engine) noteProxy(s *rule.Subject) {
	r := s.Request
	if s.TrustedPeer() || !forwards(r) || r.TLS != nil && !r.TLS.HandshakeComplete {
		return
	}
	if peer, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
		dropList.Proxy(peer.Addr().Unmap().WithZone(""), time.Now())
	}
}

// forwardingHeaders are those that proxies and CDNs add to requests.
var forwardingHeaders = []string{
	"X-Forwarded-For", "Forwarded", "Via", "X-Real-Ip", "Cf-Connecting-Ip", "True-Client-Ip", "X-Forwarded-Proto", "X-Forwarded-Host",
	"X-Forwarded", "X-Client-Ip", "Client-Ip", "X-Cluster-Client-Ip", "X-Original-Forwarded-For", "Cdn-Loop",
	"Fastly-Client-Ip", "Fly-Client-Ip", "Cloudfront-Viewer-Address", "X-Azure-Clientip", "X-Appengine-User-Ip", "X-Envoy-External-Address",
}

func forwards(r *http.Request) bool {
	for _, name := range forwardingHeaders {
		if r.Header[name] != nil {
			return true
		}
	}
	server, _ := r.Context().Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	if server != nil {
		for _, name := range server.ClientIPHeaders {
			if len(r.Header.Values(name)) > 0 {
				return true
			}
		}
	}
	return false
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
		if err != nil || dropList.Empty() {
			return conn, err
		}
		inner, secure := conn, false
		if c, ok := conn.(*tls.Conn); ok { // of which nothing was read yet
			inner, secure = c.NetConn(), true
		}
		tcp, plain := inner.(*net.TCPConn)
		switch {
		case plain && shouldDrop(tcp.RemoteAddr()):
			dropConnection(tcp)
		case plain:
			return conn, nil
		case secure:
			l.d.warned.Do(func() {
				l.d.logger.Warn("throttle_blocked drops nothing, because it comes after tls and behind another listener wrapper: put it before tls")
			})
			return conn, nil
		default:
			return &lateConn{Conn: conn}, nil
		}
	}
}

// dropConnection counts a connection and closes it at once.
func dropConnection(conn net.Conn) {
	droppedTCP.Inc()
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // nothing is left to wait for
	}
	_ = conn.Close()
}

// A lateConn finds out at the first read whether it is to be dropped. Behind the PROXY
// protocol, the address of the client must be read from the connection, for which no
// other connection may wait.
type lateConn struct {
	net.Conn
	once sync.Once
	gone bool
}

// Read implements net.Conn.
func (c *lateConn) Read(p []byte) (int, error) {
	c.once.Do(func() {
		if c.gone = shouldDrop(c.RemoteAddr()); c.gone {
			dropConnection(c.Conn)
		}
	})
	if c.gone {
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
		if !ok || !isCaddys(inner) {
			return &dropPacketConn{conn}
		}
		inner = outer.Unwrap()
	}
}

// isCaddys reports whether Caddy itself has the type of a connection.
func isCaddys(conn net.PacketConn) bool {
	kind := reflect.TypeOf(conn)
	if kind.Kind() == reflect.Pointer {
		kind = kind.Elem()
	}
	return kind.PkgPath() == reflect.TypeFor[caddy.Context]().PkgPath()
}

// dropsPacket reports whether a packet is to be dropped, and counts it then.
func dropsPacket(packet []byte, from net.Addr) bool {
	if dropList.Empty() || !blocked.OpensConnection(packet) || !shouldDrop(from) {
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
func (d *DropConnections) UnmarshalCaddyfile(t *caddyfile.Dispenser) error { return parseNothing(t) }

// UnmarshalCaddyfile sets up the wrapper from Caddyfile tokens. Syntax:
//
//	throttle_blocked
func (d *DropPackets) UnmarshalCaddyfile(t *caddyfile.Dispenser) error { return parseNothing(t) }

func parseNothing(d *caddyfile.Dispenser) error {
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
