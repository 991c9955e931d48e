package engine

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/body"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/stores"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/sharedstore"
)

// A Zone is a zone of one config as it runs, with its
// counters and logs. What all configs of its name share is in [Zone.State].
type Zone struct {
	*limit.Zone
	Counts *telemetry.Counts
	State  *ZoneState

	Definition string // canonical text: zones of one name have the same
	policy     sharedstore.Policy

	Directives [][]*limit.Zone  // the zones of each directive that charges it
	handled    []*atomic.Uint64 // requests of these
	warnedKey  bool             // of what clients choose in it
}

// requests returns how many requests the handlers had that have the zone.
func (z *Zone) requests() (n uint64) {
	for _, handled := range z.handled {
		n += handled.Load()
	}
	return n
}

// Mode says whether the zone refuses, by the config and the switches at run time.
func (z *Zone) Mode(set *override.Set, now time.Time) string {
	switch {
	case z.Shadow != nil || set.Shadow(z.Name, now):
		return "shadow"
	case z.Enforce < 100:
		return fmt.Sprintf("enforcing %d%%", z.Enforce)
	}
	return "enforcing"
}

// A ZoneState holds the figures of a zone name, and who waits there. All configs with that
// name share it, because requests of the last config are still served during a reload. Each
// config has a [Zone] of its own.
type ZoneState struct {
	*telemetry.Figures
	Waiting body.Shares
}

// StateKey returns the key of the state of a zone name in the pool.
func StateKey(name string) string { return "zone " + name }

// JoinState returns the state of a zone name, which is made when the first config wants it.
func JoinState(name string) *ZoneState {
	return stores.Join(StateKey(name), func() *ZoneState {
		return &ZoneState{Figures: telemetry.NewFigures()}
	})
}

// Destruct does nothing: [Engine.CleanUp] deletes the series.
func (l *ZoneState) Destruct() error { return nil }

// onceWarnings remembers which warnings about requests a config has logged. Each is
// logged once.
type onceWarnings struct {
	Requests atomic.Int32 // in which signs of proxies were looked for, up to WatchedRequests

	warner *zap.Logger

	untrusted, loose, noAddress sync.Once
}

// WatchedRequests is in how many requests signs are looked for in each [telemetry.SampleEvery]. What
// shows none there is rare.
const WatchedRequests = 1000

// once logs a warning the first time.
func (o *onceWarnings) once(first *sync.Once, warning string, fields ...zap.Field) {
	first.Do(func() { o.warner.Warn(warning, fields...) })
}

// look logs a warning if client addresses are missing, or probably wrong, because
// trusted_proxies is missing or not strict. It is for the first WatchedRequests.
func (o *onceWarnings) look(s *limit.Subject) {
	o.Requests.Add(1)
	r := s.Request
	if !s.Address().IsValid() {
		o.once(&o.noAddress, "requests without a client address, as over a Unix socket, count as one client for bans, client_ip and share: set trusted_proxies_unix, or another key")
	}
	if s.TrustedPeer() {
		if server, _ := r.Context().Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server); server != nil && server.TrustedProxiesStrict == 0 {
			o.once(&o.loose, "trusted_proxies is set without trusted_proxies_strict: Caddy believes the left-most address in X-Forwarded-For, which clients can choose unless the proxy overwrites the header")
		}
		return
	}
	for _, header := range []string{"X-Forwarded-For", "Forwarded", "Cf-Connecting-Ip"} {
		if r.Header[header] != nil {
			o.once(&o.untrusted, "a peer that is not in trusted_proxies sends a forwarding header: if it is your proxy or CDN, all its clients share one bucket until you list it there",
				zap.String("header", header), zap.String("peer", r.RemoteAddr))
		}
	}
}

// ForwardingHeaders are those that proxies and CDNs add to requests.
var ForwardingHeaders = []string{
	"X-Forwarded-For", "Forwarded", "Via", "X-Real-Ip", "Cf-Connecting-Ip", "True-Client-Ip", "X-Forwarded-Proto", "X-Forwarded-Host",
	"X-Forwarded", "X-Client-Ip", "Client-Ip", "X-Cluster-Client-Ip", "X-Original-Forwarded-For", "Cdn-Loop",
	"Fastly-Client-Ip", "Fly-Client-Ip", "Cloudfront-Viewer-Address", "X-Azure-Clientip", "X-Appengine-User-Ip", "X-Envoy-External-Address",
}

func forwards(r *http.Request) bool {
	server, _ := r.Context().Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	return slices.ContainsFunc(ForwardingHeaders, func(name string) bool { return r.Header[name] != nil }) ||
		server != nil && slices.ContainsFunc(server.ClientIPHeaders, func(name string) bool { return len(r.Header.Values(name)) > 0 })
}

// warn logs warnings about settings that probably do not work as meant.
func (z *Zone) warn(warnings []string) {
	for _, source := range z.Key.Sources {
		if name := http.CanonicalHeaderKey(source.Header()); slices.Contains(ForwardingHeaders, name) {
			z.warnedKey = true // a zone keyed by client_ip would limit the proxy
			z.Counts.Logger.Warn("clients can send this header, too, and choose their key by it: use client_ip, and name the proxy in trusted_proxies and its header in client_ip_headers",
				zap.String("header", name))
		}
	}
	least := slices.MinFunc(z.Key.Overrides.Limits(), func(a, b leakybucket.Limit) int { return cmp.Compare(a.Capacity, b.Capacity) })
	if least.Oversize(z.MostCost) {
		z.Counts.Logger.Warn("the capacity of an override is less than some requests cost, so its clients can never make them",
			zap.Float64("capacity", least.Capacity), zap.Float64("cost", z.MostCost))
	}
	for _, warning := range warnings {
		z.Counts.Logger.Warn(warning)
	}
}

// clientChosen reports whether clients choose the values of the key.
func (z *Zone) clientChosen() bool {
	return limit.ClientChosen(z.Key.Sources) && z.Key.Unlisted == ""
}

// warnKeys logs a warning if clients can evade all zones of a handler by making up keys.
func warnKeys(zones []*Zone, logger *zap.Logger) {
	if slices.ContainsFunc(zones, func(z *Zone) bool { return z.Key.HasAddress() && !z.clientChosen() }) {
		return
	}
	for _, z := range zones {
		if z.clientChosen() && !z.warnedKey {
			z.warnedKey = true
			logger.Warn("zone is keyed by values that clients choose, so a client can get a fresh bucket with every request, unless a handler before throttle sets them: add a zone keyed by client_ip",
				zap.String("zone", z.Name))
		}
	}
}
