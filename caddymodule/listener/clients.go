package listener

import (
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/expiring"
	bucketkey "github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

const (
	// mostClients bounds the list. Clients that do not fit are refused by the handler.
	mostClients = 100_000

	// mostProxies is how many peers may be known to forward requests of others. If there
	// are more, nobody is added to the list, since some proxies are unknown.
	mostProxies = 100_000

	// proxyFor is how long a peer counts as a proxy after its last forwarding header.
	proxyFor = 24 * time.Hour
)

// clients is a list of those whose connections are dropped before they cost a handshake. A
// listener knows neither trusted proxies nor exemptions, so clients are added once a handler
// has refused them. It is safe for concurrent use. It implements [caddymodule.Watcher].
type clients struct {
	some    atomic.Bool // whether anybody was ever added
	refused *expiring.Map[netip.Prefix, caddymodule.Refused]
	proxies *expiring.Map[netip.Addr, time.Time] // when they last forwarded a request
	blind   atomic.Int64                         // until when nobody is added, in Unix nanoseconds
}

func newClients() *clients {
	return &clients{refused: expiring.New[netip.Prefix, caddymodule.Refused](mostClients), proxies: expiring.New[netip.Addr, time.Time](mostProxies)}
}

// Refused implements [caddymodule.Watcher]. Nobody is added whose address cannot be that of one
// client alone, or who is a proxy.
func (l *clients) Refused(r caddymodule.Refused) (closes bool) {
	now, peer := time.Now(), r.Client.Addr()
	if !peer.IsGlobalUnicast() || peer.IsPrivate() || peer.Is4In6() || shared.Contains(peer) {
		return false // such addresses are those of proxies, containers and probes
	}
	if now.UnixNano() < l.blind.Load() || l.proxy(peer, now) || !l.refused.Put(r.Client, r, r.Until, now) {
		return false
	}
	l.some.Store(true)
	return true
}

// Forwards implements [caddymodule.Watcher]. For a day, connections of the peer are not
// dropped.
func (l *clients) Forwards(peer netip.Addr) {
	now := time.Now()
	peer = network(peer)
	if last, _ := l.proxies.Get(peer, now); now.Sub(last) >= proxyFor/24 && !l.proxies.Put(peer, now, now.Add(proxyFor), now) {
		l.blind.Store(now.Add(proxyFor).UnixNano())
	}
}

// find returns what refuses a peer, unless that is a proxy.
func (l *clients) find(peer netip.Addr) (r caddymodule.Refused, found bool) {
	now := time.Now()
	r, found = l.refused.Get(netip.PrefixFrom(peer, peer.BitLen()), now)
	if !found && peer.Is6() {
		r, found = l.refused.Get(netip.PrefixFrom(network(peer), 64), now)
	}
	return r, found && !l.proxy(peer, now)
}

// proxy reports whether a peer is a proxy.
func (l *clients) proxy(peer netip.Addr, now time.Time) bool {
	_, known := l.proxies.Get(network(peer), now)
	return known
}

// network returns the address itself, or the first of the /64 of an IPv6 address, since
// proxies and clients have whole ones.
func network(addr netip.Addr) netip.Addr { return bucketkey.ClientPrefix(addr, 32, 64).Addr() }

// shared are the addresses between customers and the NAT of their provider. They are
// never seen on the Internet, but are used inside of networks like private ones.
var shared = netip.MustParsePrefix("100.64.0.0/10")

// opensConnection reports whether a UDP packet begins a QUIC connection, or is early data
// of one (RFC 9000, section 17.2; RFC 9369, section 3.2). Packets of connections that
// exist do not.
func opensConnection(packet []byte) bool {
	if len(packet) < 5 || packet[0]&0x80 == 0 { // a short header
		return false
	}
	kind := packet[0] >> 4 & 3
	switch [4]byte(packet[1:5]) {
	case [4]byte{0, 0, 0, 1}: // version 1
		return kind <= 1
	case [4]byte{0x6b, 0x33, 0x43, 0xcf}: // version 2
		return kind == 1 || kind == 2
	}
	return true // a version that must be negotiated
}
