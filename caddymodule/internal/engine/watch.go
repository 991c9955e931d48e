package engine

import (
	"net/http"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	bucketkey "github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

// A Watcher is told about the peers of connections, so that it can close the connections of
// clients whose every request is refused. Its methods are called for requests, and must not
// keep them waiting.
type Watcher interface {
	// Refused is told about a client each time a request of it is refused. It returns
	// whether the answer is to be the last one of its connection.
	Refused(Refused) (closes bool)

	// Forwards is told about a peer that forwards requests of others, although
	// trusted_proxies does not name it: its requests look like those of one client.
	Forwards(peer netip.Addr)
}

// Refused is a client whose every request is refused: by a ban, or by a block of a zone with
// `block everywhere`. It is the peer of the connection itself, and no zone exempts it.
type Refused struct {
	Client netip.Prefix // its address, or the /64 of an IPv6 address
	Until  time.Time    // a minute from now at most; then a handler must refuse it again

	config uint64              // the number of the config that refused it
	block  *leakybucket.Charge // names the bucket with the block; nil if the client is banned
}

// Holds reports whether requests of a peer, which is within the Client, are still refused. It
// looks at what this Caddy knows, and waits for no store.
func (r Refused) Holds(peer netip.Addr) bool {
	e := newest.Load()
	if e == nil || len(e.watchers) == 0 || e.number != r.config {
		return false
	}
	now, overrides := time.Now(), e.Overrides()
	if overrides.AllShadow(now) {
		return false
	}
	if r.block == nil {
		ban := overrides.Banned(peer, now)
		if ban != nil {
			ban.Hits.Add(1)
		}
		return ban != nil
	}
	if overrides.Shadow(r.block.Zone, now) {
		return false
	}
	if l := overrides.Limit(r.block.Zone, r.block.Key, now); l != nil && !l.Limits() {
		return false
	}
	block, _ := e.Store.Known(r.block)
	return block.BlockedUntil != 0
}

// Watch has a watcher told about clients that are refused. It must be called while the config
// is provisioned.
func (e *Engine) Watch(w Watcher) {
	if !slices.Contains(e.watchers, w) {
		e.watchers = append(e.watchers, w)
	}
}

// configs counts configs. What another config has refused does not count, since this one
// may exempt the client or trust it as a proxy.
var configs atomic.Uint64

// notifyRefused tells watchers about the client of a request that is refused, if a block
// everywhere or a ban refuses it and nothing speaks against closing its connections. It
// reports whether this connection is to be closed.
func (e *Engine) notifyRefused(r *http.Request, v *limit.Verdict) (closes bool) {
	s := limit.NewSubject(r)
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	client := bucketkey.Unmap(peer.Addr())
	if err != nil || s.Early() || s.TrustedPeer() || bucketkey.Unmap(s.Address()) != client || forwards(r) {
		return false // the peer is not the client itself, or has not completed the handshake
	}
	o := refusedWhole(v, client)
	if o == nil || e.exemptsSome && e.exemptsAnywhere(&s) {
		return false
	}
	refused, bits := Refused{config: e.number}, 64
	if e.exemptsSome {
		bits = 128 // a neighbour may be exempt
	}
	if o.Reason() != limit.Banned {
		c := o.Charge
		refused.block, bits = &c, max(bits, o.Zone.Key.IPv6)
	}
	refused.Client, refused.Until = bucketkey.ClientPrefix(client, 32, bits), time.Now().Add(min(o.Block, refuseAgain))
	for _, w := range e.watchers {
		closes = w.Refused(refused) || closes
	}
	return closes
}

// refuseAgain is after how long a handler must refuse a client again. What a matcher says may
// change, as when a crawler has been verified, and another Caddy may have released the client.
const refuseAgain = time.Minute

// refusedWhole returns the outcome that refuses every request of a client, or nil.
func refusedWhole(v *limit.Verdict, peer netip.Addr) *limit.Outcome {
	for i := range v.Outcomes {
		o := &v.Outcomes[i]
		if o.Decision() == limit.Refused && o.Block > 0 && (o.Reason() == limit.Banned || blocksOnly(o, peer)) {
			return o
		}
	}
	return nil
}

// blocksOnly reports whether an outcome has found a block that holds everywhere, of a key
// that is nothing but this client.
func blocksOnly(o *limit.Outcome, peer netip.Addr) bool {
	z := o.Zone
	return z.BlocksEverywhere() && (peer.Is4() && z.Key.IPv4 == 32 || peer.Is6() && z.Key.IPv6 >= 64) &&
		o.Key == bucketkey.ClientPrefix(peer, z.Key.IPv4, z.Key.IPv6).Addr().String()
}

// exemptsAnywhere reports whether any zone exempts a request, which the global options do
// not.
func (e *Engine) exemptsAnywhere(s *limit.Subject) bool {
	for _, z := range e.Zones {
		if exempt, err := z.Exempts(s); err != nil || exempt {
			return true
		}
	}
	return false
}

// notifyForwards tells watchers about the peer of a request that forwards what others ask, if it
// does. A proxy that is missing in trusted_proxies is the client of all its requests, and must
// not be shut out.
func (e *Engine) notifyForwards(s *limit.Subject) {
	r := s.Request
	if s.TrustedPeer() || !forwards(r) || s.Early() {
		return
	}
	if peer, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
		for _, w := range e.watchers {
			w.Forwards(bucketkey.Unmap(peer.Addr()))
		}
	}
}
