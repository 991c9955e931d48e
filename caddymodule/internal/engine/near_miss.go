package engine

import (
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/evidence"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/rule"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/settlement"
)

// judgeEvery is after how many requests a handler has its zones judge what they have met.
// Zones that no request meets would not do it by themselves.
const judgeEvery = 1024

// A watch counts the requests of a handler, whether or not its zones meet them.
type watch struct {
	zones    []*evidence.Zone
	requests atomic.Uint64

	// rewritten says that a rewrite behind the handler has made a near miss of an address. From
	// then on each answer is looked at, since the address alone does not tell before it.
	rewritten atomic.Bool
}

// next counts a request. While a zone has met none, it returns a handler before the next one
// that looks whether the site answers what the zone was probably meant for.
func (w *watch) next(next caddyhttp.Handler) caddyhttp.Handler {
	if w.requests.Add(1)%judgeEvery == 0 {
		now := time.Now()
		for _, z := range w.zones {
			z.Judge(now)
		}
	}
	if slices.ContainsFunc(w.zones, (*evidence.Zone).Unmet) {
		return &nearMiss{w, next}
	}
	return next
}

// A nearMiss serves a request while a zone of its handler has met none.
type nearMiss struct {
	*watch
	next caddyhttp.Handler
}

// ServeHTTP implements caddyhttp.Handler.
func (n *nearMiss) ServeHTTP(w http.ResponseWriter, r *http.Request) error {
	seen := r.URL.Path
	sent := seen
	if original, ok := r.Context().Value(caddyhttp.OriginalRequestCtxKey).(http.Request); ok && original.URL != nil {
		sent = original.URL.Path
	}
	if !n.rewritten.Load() && !n.misses(sent, false) && !n.misses(seen, false) {
		err := n.next.ServeHTTP(w, r)
		if n.misses(r.URL.Path, r.URL.Path != seen) {
			n.rewritten.Store(true)
		}
		return err
	}
	var observer settlement.Observer
	err := observer.Serve(w, r, n.next)
	if err != nil || observer.Status >= http.StatusBadRequest {
		return err
	}
	for _, z := range n.zones {
		for _, path := range []string{sent, r.URL.Path} {
			if of := z.NearMiss(path, path != sent && path != seen); of != "" && z.Unmet() {
				s := rule.NewSubject(r)
				z.MissedNearly(s.Address(), path, of)
				break
			}
		}
	}
	return nil
}

// misses reports whether a path, perhaps one that a rewrite behind the handler has made, is a
// near miss of a zone that has met no request.
func (n *nearMiss) misses(path string, made bool) bool {
	return slices.ContainsFunc(n.zones, func(z *evidence.Zone) bool { return z.Unmet() && z.NearMiss(path, made) != "" })
}
