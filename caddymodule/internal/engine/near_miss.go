package engine

import (
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/address"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/evidence"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/rule"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/settlement"
)

// judgeEvery is after how many requests a handler has its zones judge what they have met.
// Zones that no request meets would not do it by themselves.
const judgeEvery = 1024

// lookEvery is after how many requests one is looked at for what a rewrite behind the handler
// makes of it, when all zones have met requests.
const lookEvery = 64

// A watch counts the requests of a handler, whether or not its zones meet them.
type watch struct {
	zones    []*evidence.Zone
	requests atomic.Uint64

	// rewritten says that a rewrite behind the handler has made a near miss of an address. From
	// then on each answer is looked at, since the address alone does not tell before it.
	rewritten atomic.Bool
}

// next counts a request. While a zone has met none, and now and then after that, it returns a
// handler before the next one that looks whether the site answers what a zone was probably
// meant for.
func (w *watch) next(next caddyhttp.Handler) caddyhttp.Handler {
	n := w.requests.Add(1)
	if n%judgeEvery == 0 {
		now := time.Now()
		for _, z := range w.zones {
			z.Judge(now)
		}
	}
	if n%lookEvery == 0 || slices.ContainsFunc(w.zones, (*evidence.Zone).Unmet) {
		return &nearMiss{w, next}
	}
	return next
}

// A nearMiss serves a request and looks whether a zone of its handler should have met it.
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
	shown := func(z *evidence.Zone) bool {
		_, of, _ := missed(z, sent, seen, r.URL.Path)
		return of != ""
	}
	if !n.rewritten.Load() && !slices.ContainsFunc(n.zones, shown) {
		err := n.next.ServeHTTP(w, r)
		if slices.ContainsFunc(n.zones, shown) {
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
		if path, of, made := missed(z, sent, seen, r.URL.Path); of != "" {
			s := rule.NewSubject(r)
			z.MissedNearly(s.Address(), path, of, made)
		}
	}
	return nil
}

// missed returns the path of which a zone was probably meant to see more than it does, and the
// address that shows it: one that a rewrite behind the handler has made and the zone would
// match, or, while the zone has met no request, one that ends like the path. sent, seen and now
// are the addresses of the client, before the handler and behind it.
func missed(z *evidence.Zone, sent, seen, now string) (path, of string, made bool) {
	if now != seen && !address.FrontController(sent, now) && z.Matching(sent) == "" && z.Matching(seen) == "" {
		if of = z.Matching(now); of != "" {
			return now, of, true
		}
	}
	if z.Unmet() {
		for _, path := range []string{sent, now} {
			if of := z.NearMiss(path); of != "" {
				return path, of, false
			}
		}
	}
	return "", "", false
}
