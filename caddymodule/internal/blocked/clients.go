package blocked

import (
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/expiring"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	bucketkey "github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

const (
	// mostClients bounds the list. Clients that do not fit are refused by the handler.
	mostClients = 100_000

	// mostProxies is how many peers may be known to forward requests of others. If there
	// are more, nobody is added to the list, since some proxies are unknown.
	mostProxies = 100_000

	// longest is how long an entry holds. Then the handler must refuse the client again.
	longest = time.Hour

	// proxyFor is how long a peer counts as a proxy after its last forwarding header.
	proxyFor = 24 * time.Hour
)

// An Entry says why the connections of a client are dropped.
type Entry struct {
	// Config is the number of the config whose handler has refused the client. Another
	// config may exempt it.
	Config uint64

	// Block names the bucket with the block. If nil, the client is banned.
	Block *leakybucket.Charge
}

func (e Entry) same(other Entry) bool {
	if e.Config != other.Config || e.Block == nil || other.Block == nil {
		return e == other
	}
	return e.Block.Zone == other.Block.Zone && e.Block.Key == other.Block.Key
}

// Clients is a list of those whose connections may be dropped before they cost a handshake.
// A listener knows neither trusted proxies nor exemptions, so only the handler adds
// clients, after it has refused them. It is safe for concurrent use.
type Clients struct {
	clients *expiring.Map[netip.Prefix, Entry]
	proxies *expiring.Map[netip.Addr, time.Time] // until they are to be noted again
	blind   atomic.Int64                         // the Unix time until which nobody is added
}

// NewClients returns an empty list.
func NewClients() *Clients {
	return &Clients{
		clients: expiring.New[netip.Prefix, Entry](mostClients),
		proxies: expiring.New[netip.Addr, time.Time](mostProxies),
	}
}

// Empty reports, without a lock, whether nobody is on the list.
func (l *Clients) Empty() bool { return l.clients.Empty() }

// Add adds a client until a time, but for an hour at most. Of an IPv6 address, bits count.
// Nobody is added whose address cannot be that of one client alone, or who is a proxy.
// Add returns false if the client is not on the list.
func (l *Clients) Add(peer netip.Addr, bits int, e Entry, until, now time.Time) bool {
	if !public(peer) || now.Unix() < l.blind.Load() {
		return false
	}
	if _, proxy := l.proxies.Get(network(peer), now); proxy {
		return false
	}
	client := bucketkey.ClientPrefix(peer, 32, bits)
	if was, found := l.clients.Get(client, now); found && was.same(e) {
		return true // which spares the lock
	}
	if last := now.Add(longest); last.Before(until) {
		until = last
	}
	return l.clients.Put(client, e, until, now)
}

// Find returns the entry of a peer that was made with a config.
func (l *Clients) Find(peer netip.Addr, config uint64, now time.Time) (Entry, bool) {
	if l.Empty() {
		return Entry{}, false
	}
	e, found := l.clients.Get(netip.PrefixFrom(peer, peer.BitLen()), now)
	if !found && peer.Is6() {
		e, found = l.clients.Get(netip.PrefixFrom(network(peer), 64), now)
	}
	if !found || e.Config != config {
		return Entry{}, false
	}
	_, proxy := l.proxies.Get(network(peer), now)
	return e, !proxy
}

// Proxy notes that a peer has forwarded a request of somebody else. For a day, its
// connections are not dropped.
func (l *Clients) Proxy(peer netip.Addr, now time.Time) {
	peer = network(peer)
	if due, known := l.proxies.Get(peer, now); known && now.Before(due) {
		return
	}
	if !l.proxies.Put(peer, now.Add(proxyFor/24), now.Add(proxyFor), now) {
		l.blind.Store(now.Add(proxyFor).Unix())
	}
}

// network returns the address itself, or the first of the /64 of an IPv6 address, since
// proxies and clients have whole ones.
func network(addr netip.Addr) netip.Addr { return bucketkey.ClientPrefix(addr, 32, 64).Addr() }

// shared are the addresses between customers and the NAT of their provider. They are
// never seen on the Internet, but are used inside of networks like private ones.
var shared = netip.MustParsePrefix("100.64.0.0/10")

// public reports whether an address may be that of one client somewhere on the Internet.
// Loopback and private addresses are those of proxies, containers and probes.
func public(addr netip.Addr) bool {
	return addr.IsGlobalUnicast() && !addr.IsPrivate() && !addr.Is4In6() && !shared.Contains(addr)
}

// OpensConnection reports whether a UDP packet begins a QUIC connection, or is early data
// of one (RFC 9000, section 17.2; RFC 9369, section 3.2). Packets of connections that
// exist do not.
func OpensConnection(packet []byte) bool {
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
