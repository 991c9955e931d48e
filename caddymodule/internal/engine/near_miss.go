package engine

import (
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/rule"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/settlement"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
)

// judgeEvery is after how many requests a handler has its zones judge what they have met.
// Zones that no request meets would not do it by themselves.
const judgeEvery = 1024

// watch counts a request. While a zone has met none, it returns a next handler that looks
// whether the site answers what the zone was probably meant for.
func (h *Handler) watch(r *http.Request, next caddyhttp.Handler) caddyhttp.Handler {
	if h.requests.Add(1)%judgeEvery == 0 {
		now := time.Now()
		for _, t := range h.counts {
			t.Judge(now)
		}
	}
	for _, t := range h.counts {
		if t.Unmet() {
			return &nearMiss{h, next}
		}
	}
	return next
}

// A nearMiss serves a request while a zone of its handler has met none.
type nearMiss struct {
	handler *Handler
	next    caddyhttp.Handler
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
	for _, t := range n.handler.counts {
		n.tell(t, r, paths)
	}
	return nil
}

// tell tells a zone of the request if that was a near miss of it.
func (n *nearMiss) tell(t *telemetry.Zone, r *http.Request, paths []string) {
	for _, path := range paths {
		if of := t.NearMiss(path); of != "" && t.Unmet() {
			s := rule.NewSubject(r)
			t.MissedNearly(s.Address(), path, of)
			return
		}
	}
}
