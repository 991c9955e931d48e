package engine

import (
	"net"
	"net/http"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/blocked"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/rule"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	bucketkey "github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

// DropList is the clients whose connections are dropped. There is one for the process,
// because the sockets of HTTP/3 outlive configs, with the wrapper they began with.
var DropList = blocked.NewClients()

// lastConfig numbers configs. An entry of another config does not count, since this one
// may exempt the client or trust it as a proxy.
var lastConfig atomic.Uint64

var (
	DroppedTCP  = telemetry.Dropped.WithLabelValues("tcp")
	DroppedQUIC = telemetry.Dropped.WithLabelValues("quic")
)

// ShouldDrop reports whether a connection from an address is to be dropped. The handler has
// added the client; whether its block or ban still holds is looked up each time.
func ShouldDrop(address net.Addr) bool {
	if DropList.Empty() {
		return false
	}
	a := newestApp.Load()
	if a == nil || !a.Drops {
		return false
	}
	peer, ok := addressOf(address)
	if !ok {
		return false
	}
	now := time.Now()
	e, found := DropList.Find(peer, a.configNumber.Load(), now)
	if !found {
		return false
	}
	overrides := a.Overrides()
	if overrides.AllShadow(now) {
		return false
	}
	if e.Block == nil {
		ban := overrides.Banned(peer, now)
		if ban != nil {
			ban.Hit()
		}
		return ban != nil
	}
	if overrides.Shadow(e.Block.Zone, now) {
		return false
	}
	if l := overrides.Limit(e.Block.Zone, e.Block.Key, now); l != nil && !l.Limits() {
		return false
	}
	_, runs, fresh := a.Blocks.Find(e.Block)
	if runs && !fresh && a.Shared != nil {
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
		if a, release := RunningApp(); a != nil {
			defer release()
			a.Blocks.Believe(a.Ctx, &c, a.Store)
		}
	}()
}

// addDropped adds the client of a request that is refused to those whose connections are
// dropped, if a block everywhere or a ban refuses it and nothing speaks against that. It
// returns false if the client is not dropped. config is the number of the config when the
// decision began.
func (a *Engine) addDropped(r *http.Request, res *decision.Verdict, config uint64) bool {
	s := rule.NewSubject(r)
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	client := peer.Addr().Unmap().WithZone("")
	if err != nil || s.Early() || s.TrustedPeer() || s.Address().Unmap().WithZone("") != client || forwards(r) {
		return false // the peer is not the client itself, or has not completed the handshake
	}
	o := droppedBy(res, client)
	if o == nil || a.exemptsAnywhere(&s) {
		return false
	}
	e, bits, longest := blocked.Entry{Config: config}, 64, time.Hour
	if a.exemptsSome {
		bits, longest = 128, exemptAgain // a neighbour may be exempt, or the client soon
	}
	if o.Reason() != rule.Banned {
		c := o.Charge()
		c.Cost = 0 // it only names the bucket
		e.Block, bits = &c, max(bits, o.Zone.Key.IPv6Bits)
	}
	now := time.Now()
	return DropList.Add(client, bits, e, now.Add(min(o.Block, longest)), now)
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
func (e *Engine) forgetDropped() { e.configNumber.Store(lastConfig.Add(1)) }

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
func (e *Engine) exemptsAnywhere(s *rule.Subject) bool {
	if !e.exemptsSome {
		return false
	}
	for _, z := range e.Zones {
		if exempt, err := z.Exempts(s); err != nil || exempt {
			return true
		}
	}
	return false
}

// noteProxy notes that the peer of a request forwards what others ask, if it does. A proxy
// that is missing in trusted_proxies is the client of all its requests, and must not be
// dropped.
func (e *Engine) noteProxy(s *rule.Subject) {
	r := s.Request
	if s.TrustedPeer() || !forwards(r) || s.Early() {
		return
	}
	if peer, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
		DropList.Proxy(peer.Addr().Unmap().WithZone(""), time.Now())
	}
}
