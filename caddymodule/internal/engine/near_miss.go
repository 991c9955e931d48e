package engine

import (
	"net/http"
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
	for _, z := range w.zones {
		if z.Unmet() {
			return &nearMiss{w.zones, next}
		}
	}
	return next
}

// A nearMiss serves a request while a zone of its handler has met none.
type nearMiss struct {
	zones []*evidence.Zone
	next  caddyhttp.Handler
}

// ServeHTTP implements caddyhttp.Handler.
func (n *nearMiss) ServeHTTP(w http.ResponseWriter, r *http.Request) error {
	var observer settlement.Observer
	err := observer.Serve(w, r, n.next)
	if err != nil || observer.Status >= http.StatusBadRequest {
		return err
	}
	paths := []string{r.URL.Path} // as it was served in the end
	if original, ok := r.Context().Value(caddyhttp.OriginalRequestCtxKey).(http.Request); ok && original.URL != nil {
		paths = append(paths, original.URL.Path)
	}
	for _, z := range n.zones {
		tell(z, r, paths)
	}
	return nil
}

// tell tells a zone of the request if that was a near miss of it.
func tell(z *evidence.Zone, r *http.Request, paths []string) {
	for _, path := range paths {
		if of := z.NearMiss(path); of != "" && z.Unmet() {
			s := rule.NewSubject(r)
			z.MissedNearly(s.Address(), path, of)
			return
		}
	}
}
