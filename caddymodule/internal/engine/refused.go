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
	Until  time.Time    // an hour from now at most; then a handler must refuse it again

	config uint64              // the number of the config that refused it
	block  *leakybucket.Charge // names the bucket with the block; nil if the client is banned
}

// Holds reports whether requests of a peer, which is within the Client, are still refused. It
// looks at what this Caddy knows, and waits for no store.
func (r Refused) Holds(peer netip.Addr) bool {
	a := newestApp.Load()
	if a == nil || len(a.watchers) == 0 || a.configNumber.Load() != r.config {
		return false
	}
	now, overrides := time.Now(), a.Overrides()
	if overrides.AllShadow(now) {
		return false
	}
	if r.block == nil {
		ban := overrides.Banned(peer, now)
		if ban != nil {
			ban.Hit()
		}
		return ban != nil
	}
	if overrides.Shadow(r.block.Zone, now) {
		return false
	}
	if l := overrides.Limit(r.block.Zone, r.block.Key, now); l != nil && !l.Limits() {
		return false
	}
	_, runs, current := a.known(now, r.block)
	if runs && !current {
		confirmLater(*r.block)
	}
	return runs
}

// Watch has a watcher told about clients that are refused. It must be called while the config
// is provisioned.
func (e *Engine) Watch(w Watcher) {
	if !slices.Contains(e.watchers, w) {
		e.watchers = append(e.watchers, w)
	}
}

// lastConfig numbers configs. What another config has refused does not count, since this one
// may exempt the client or trust it as a proxy.
var lastConfig atomic.Uint64

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
			a.ConfirmedBlock(a.Ctx, time.Now(), &c)
		}
	}()
}

// tellRefused tells watchers about the client of a request that is refused, if a block
// everywhere or a ban refuses it and nothing speaks against closing its connections. It
// reports whether this connection is to be closed. config is the number of the config when
// the decision began.
func (e *Engine) tellRefused(r *http.Request, res *limit.Verdict, config uint64) (closes bool) {
	if len(e.watchers) == 0 {
		return false
	}
	s := limit.NewSubject(r)
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	client := bucketkey.Unmap(peer.Addr())
	if err != nil || s.Early() || s.TrustedPeer() || bucketkey.Unmap(s.Address()) != client || forwards(r) {
		return false // the peer is not the client itself, or has not completed the handshake
	}
	o := refusedWhole(res, client)
	if o == nil || e.exemptsAnywhere(&s) {
		return false
	}
	refused, bits, longest := Refused{config: config}, 64, time.Hour
	if e.exemptsSome {
		bits, longest = 128, exemptAgain // a neighbour may be exempt, or the client soon
	}
	if o.Reason() != limit.Banned {
		c := o.Charge
		c.Cost = 0 // it only names the bucket
		refused.block, bits = &c, max(bits, o.Zone.Key.IPv6)
	}
	refused.Client, refused.Until = bucketkey.ClientPrefix(client, 32, bits), time.Now().Add(min(o.Block, longest))
	for _, w := range e.watchers {
		closes = w.Refused(refused) || closes
	}
	return closes
}

// exemptAgain is how long a refusal holds if the config exempts some clients. What a matcher says
// may change, as when a crawler has been verified.
const exemptAgain = time.Minute

// refusedWhole returns the outcome that refuses every request of a client, or nil.
func refusedWhole(res *limit.Verdict, peer netip.Addr) *limit.Outcome {
	for i := range res.Outcomes {
		o := &res.Outcomes[i]
		if o.Decision() == limit.Refused && o.Block > 0 && (o.Reason() == limit.Banned || blocksOnly(o, peer)) {
			return o
		}
	}
	return nil
}

// refuseAgain ends what watchers were told: handlers must refuse each client once more, since
// the config may treat it differently now. It is called once the change is in force: what was
// refused before has the old number.
func (e *Engine) refuseAgain() { e.configNumber.Store(lastConfig.Add(1)) }

// blocksOnly reports whether an outcome has found a block that holds everywhere, of a key
// that is nothing but this client.
func blocksOnly(o *limit.Outcome, peer netip.Addr) bool {
	z := o.Zone
	bits := z.Key.IPv4
	if peer.Is6() {
		bits = z.Key.IPv6
	}
	return z.BlocksEverywhere() && (peer.Is4() && bits == 32 || peer.Is6() && bits >= 64) &&
		o.Key == bucketkey.ClientPrefix(peer, z.Key.IPv4, z.Key.IPv6).Addr().String()
}

// exemptsAnywhere reports whether any zone exempts a request, which the global options do
// not.
func (e *Engine) exemptsAnywhere(s *limit.Subject) bool {
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

// tellForwards tells watchers about the peer of a request that forwards what others ask, if it
// does. A proxy that is missing in trusted_proxies is the client of all its requests, and must
// not be shut out.
func (e *Engine) tellForwards(s *limit.Subject) {
	r := s.Request
	if len(e.watchers) == 0 || s.TrustedPeer() || !forwards(r) || s.Early() {
		return
	}
	if peer, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
		for _, w := range e.watchers {
			w.Forwards(bucketkey.Unmap(peer.Addr()))
		}
	}
}
