package caddymodule

import (
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
)

// limitLog keeps the line of a refused request out of the access log if refusal log of
// the decisive zone says so. Lines that are written tell how many were not.
func (h *throttler) limitLog(r *http.Request, res *decision.Result, now time.Time) {
	if !h.app.limitsLog || !decision.Logged(r, h.server) {
		return
	}
	if res.Refused() {
		z := h.app.zones[res.Decisive().Zone.Name]
		if z.logLimit != nil && !z.logLimit.AllowN(now, 1) {
			z.live.unlogged.Add(1)
			caddyhttp.SetVar(r.Context(), caddyhttp.LogSkipVar, true)
			return
		}
	}
	for i := range res.Outcomes {
		o := &res.Outcomes[i]
		if z := h.app.zones[o.Zone.Name]; z.logLimit != nil && o.Decision() != decision.Withdrawn && z.live.unlogged.Load() > 0 {
			o.Unlogged = z.live.unlogged.Swap(0)
		}
	}
}
