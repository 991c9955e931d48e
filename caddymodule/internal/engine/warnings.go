package engine

import (
	"math/rand/v2"
	"net/http"
	"sync/atomic"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/response"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/rule"
)

// onceWarnings remembers which warnings about requests a config has logged. Each is
// logged once.
type onceWarnings struct {
	untrusted, loose, noAddress, kept atomic.Bool

	Requests, refusals watched // in which signs of proxies and of caches are looked for
}

// watched counts requests in which something is looked for, up to watchedRequests.
type watched struct{ N atomic.Int32 }

const (
	// WatchedRequests is in how many requests of a config signs are looked for. After
	// that, it is one of watchedShare. What showed no sign by then is rare.
	WatchedRequests = 1000
	watchedShare    = 64
)

// next reports whether to look into one more request.
func (w *watched) next() bool {
	if w.N.Load() < WatchedRequests {
		w.N.Add(1)
		return true
	}
	return rand.Uint32()%watchedShare == 0
}

// watchProxies logs a warning if client addresses are probably wrong, because
// trusted_proxies is missing or not strict.
func (a *Engine) watchProxies(s *rule.Subject) {
	if !a.Warned.Requests.next() {
		return
	}
	r := s.Request
	if s.TrustedPeer() {
		if a.Warned.loose.Load() {
			return
		}
		server, _ := r.Context().Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
		if server != nil && server.TrustedProxiesStrict == 0 && !a.Warned.loose.Swap(true) {
			a.Warner.Warn("trusted_proxies is set without trusted_proxies_strict: Caddy believes the left-most address in X-Forwarded-For, which clients can choose unless the proxy overwrites the header")
		}
		return
	}
	if a.Warned.untrusted.Load() {
		return
	}
	for _, header := range []string{"X-Forwarded-For", "Forwarded", "Cf-Connecting-Ip"} {
		if r.Header[header] != nil && !a.Warned.untrusted.Swap(true) {
			a.Warner.Warn("a peer that is not in trusted_proxies sends a forwarding header: if it is your proxy or CDN, all its clients share one bucket until you list it there",
				zap.String("header", header), zap.String("peer", r.RemoteAddr))
		}
	}
}

// NoAddress implements decision.Env.
func (a *Engine) NoAddress() {
	if !a.Warned.noAddress.Swap(true) {
		a.Warner.Warn("requests without a client address, as over a Unix socket, share one bucket: set trusted_proxies_unix, or another key")
	}
}

// watchCaches logs a warning if the headers of a refusal, as they were sent, let caches
// keep it for others.
func (a *Engine) watchCaches(sent http.Header) {
	if a.Warned.refusals.next() && !a.Warned.kept.Load() && !response.CachesForbidden(sent) && !a.Warned.kept.Swap(true) {
		a.Warner.Warn("caches may keep refusals, because a handler around throttle sets their headers last: set lifetimes in a header directive that neither has defer nor removes a header")
	}
}
