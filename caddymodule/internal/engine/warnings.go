package engine

import (
	"math/rand/v2"
	"net/http"
	"net/netip"
	"sync/atomic"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/rule"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/sketch"
	bucketkey "github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

// onceWarnings remembers which warnings about requests a config has logged. Each is
// logged once.
type onceWarnings struct {
	warner *zap.Logger

	untrusted, loose, wide, noAddress atomic.Bool

	peers sketch.Distinct // public networks of peers that are trusted

	Requests atomic.Int32 // in which signs of proxies were looked for, up to WatchedRequests
}

const (
	// WatchedRequests is in how many requests of a config signs are looked for. After
	// that, it is one of watchedShare. What showed no sign by then is rare.
	WatchedRequests = 1000
	watchedShare    = 64
)

// next reports whether to look into one more request.
func (o *onceWarnings) next() bool {
	if o.Requests.Load() < WatchedRequests {
		o.Requests.Add(1)
		return true
	}
	return rand.Uint32()%watchedShare == 0
}

// proxies logs a warning if client addresses are probably wrong, because
// trusted_proxies is missing or not strict.
func (o *onceWarnings) proxies(s *rule.Subject) {
	if !o.next() {
		return
	}
	r := s.Request
	if s.TrustedPeer() {
		o.trusted(r)
		if o.loose.Load() {
			return
		}
		server, _ := r.Context().Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
		if server != nil && server.TrustedProxiesStrict == 0 && !o.loose.Swap(true) {
			o.warner.Warn("trusted_proxies is set without trusted_proxies_strict: Caddy believes the left-most address in X-Forwarded-For, which clients can choose unless the proxy overwrites the header")
		}
		return
	}
	if o.untrusted.Load() {
		return
	}
	for _, header := range []string{"X-Forwarded-For", "Forwarded", "Cf-Connecting-Ip"} {
		if r.Header[header] != nil && !o.untrusted.Swap(true) {
			o.warner.Warn("a peer that is not in trusted_proxies sends a forwarding header: if it is your proxy or CDN, all its clients share one bucket until you list it there",
				zap.String("header", header), zap.String("peer", r.RemoteAddr))
		}
	}
}

// mostTrusted is how many public networks (/24, /48) of peers may be trusted. Large content
// delivery networks have fewer addresses that reach one site.
const mostTrusted = 100

// trusted logs a warning if so many networks are trusted that clients are among them.
func (o *onceWarnings) trusted(r *http.Request) {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	addr := peer.Addr().Unmap()
	if err != nil || o.wide.Load() || !addr.IsGlobalUnicast() || addr.IsPrivate() {
		return
	}
	var room [48]byte
	o.peers.AddBytes(bucketkey.ClientPrefix(addr, 24, 48).AppendTo(room[:0]))
	if o.peers.Estimate() > mostTrusted && !o.wide.Swap(true) {
		o.warner.Warn("peers of more than 100 public networks are trusted, so clients are among them and choose their address: list only your proxies in trusted_proxies")
	}
}

// unknown logs a warning that a request has no client address.
func (o *onceWarnings) unknown() {
	if !o.noAddress.Swap(true) {
		o.warner.Warn("requests without a client address, as over a Unix socket, share one bucket: set trusted_proxies_unix, or another key")
	}
}
