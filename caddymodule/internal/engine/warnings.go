package engine

import (
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
)

// onceWarnings remembers which warnings about requests a config has logged. Each is
// logged once.
type onceWarnings struct {
	Requests atomic.Int32 // in which signs of proxies were looked for, up to WatchedRequests

	warner *zap.Logger

	untrusted, loose, noAddress atomic.Bool
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
func (o *onceWarnings) proxies(s *limit.Subject) {
	if !o.next() {
		return
	}
	r := s.Request
	if s.TrustedPeer() {
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

// unknown logs a warning that a request has no client address.
func (o *onceWarnings) unknown() {
	if !o.noAddress.Swap(true) {
		o.warner.Warn("requests without a client address, as over a Unix socket, share one bucket: set trusted_proxies_unix, or another key")
	}
}

// ForwardingHeaders are those that proxies and CDNs add to requests.
var ForwardingHeaders = []string{
	"X-Forwarded-For", "Forwarded", "Via", "X-Real-Ip", "Cf-Connecting-Ip", "True-Client-Ip", "X-Forwarded-Proto", "X-Forwarded-Host",
	"X-Forwarded", "X-Client-Ip", "Client-Ip", "X-Cluster-Client-Ip", "X-Original-Forwarded-For", "Cdn-Loop",
	"Fastly-Client-Ip", "Fly-Client-Ip", "Cloudfront-Viewer-Address", "X-Azure-Clientip", "X-Appengine-User-Ip", "X-Envoy-External-Address",
}

// namesClient reports whether a header is one in which proxies name the client.
func namesClient(header string) bool {
	header = http.CanonicalHeaderKey(header)
	return slices.Contains(ForwardingHeaders, header) && !slices.Contains([]string{"Via", "X-Forwarded-Proto", "X-Forwarded-Host", "Cdn-Loop"}, header)
}

func forwards(r *http.Request) bool {
	for _, name := range ForwardingHeaders {
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

// namesPlaceholders reports whether the zone itself shows its verdicts, as in a page of its own.
func (z *Zone) namesPlaceholders() bool { return strings.Contains(z.Definition, "http.throttle.") }

// warn logs warnings about settings that probably do not work as meant.
func (z *Zone) warn(warnings []string) {
	for _, source := range z.Key.Sources {
		name := source.Header()
		switch {
		case strings.ContainsAny(name, "_."):
			z.Counts.Logger.Warn("Caddy drops headers with _ or . in their names unless they are listed in expected_underscore_headers or expected_dot_headers of the server: this key may always be missing",
				zap.String("header", name))
		case namesClient(name):
			z.warnedKey = true // a zone keyed by client_ip would limit the proxy
			z.Counts.Logger.Warn("clients can send this header, too, and choose their key by it: use client_ip, and name the proxy in trusted_proxies and its header in client_ip_headers",
				zap.String("header", name))
		}
	}
	if slices.ContainsFunc(z.Cost, func(c limit.Cost) bool { return limit.SentByClient(c.Value) }) {
		z.Counts.Logger.Warn("clients choose what their requests cost, since they send the value: compute the cost from something else")
	}
	if z.Settle.ChargesRedirectsOnly() {
		z.Counts.Logger.Warn("settle status charges redirects only, by which most applications answer a log-in that succeeded: name the status of one that failed")
	}
	if z.Block != nil && z.Settle != nil && !z.Settle.After {
		z.Counts.Logger.Warn("zone blocks clients for what their requests reserve, before the response says what they cost: add after to settle")
	}
	z.warnOversize()
	for _, warning := range warnings {
		z.Counts.Logger.Warn(warning)
	}
}
