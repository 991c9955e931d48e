package caddymodule

import (
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"golang.org/x/time/rate"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// Words of refusal log.
const (
	logAll = "all"
	logOff = "off"
)

// parseLogRefused returns what limits the refusals in the access log, in bursts of those of
// a second. It is nil if all are logged.
func parseLogRefused(text string) (*rate.Limiter, error) {
	switch text {
	case logAll:
		return nil, nil
	case logOff:
		return rate.NewLimiter(0, 0), nil
	}
	lines, err := leakybucket.ParseRate(text)
	if err != nil || lines <= 0 {
		return nil, errors.New("invalid log " + strconv.Quote(text) + ": want all, off or a rate such as 10/s")
	}
	return rate.NewLimiter(rate.Limit(lines), max(1, int(lines))), nil
}

// limitLog keeps the line of a refused request out of the access log if refusal log of
// the decisive zone says so. Lines that are written tell how many were not.
func (h *throttler) limitLog(r *http.Request, res *decision.Result, now time.Time) {
	if !h.app.limitsLog || !decision.Logged(r, h.server) {
		return
	}
	if res.Refused() {
		z := h.app.zones[res.Decisive().Rule.Name]
		if z.logLimit != nil && !z.logLimit.AllowN(now, 1) {
			z.live.unlogged.Add(1)
			caddyhttp.SetVar(r.Context(), caddyhttp.LogSkipVar, true)
			return
		}
	}
	for i := range res.Outcomes {
		o := &res.Outcomes[i]
		if z := h.app.zones[o.Rule.Name]; z.logLimit != nil && o.Decision() != decision.Withdrawn && z.live.unlogged.Load() > 0 {
			o.Unlogged = z.live.unlogged.Swap(0)
		}
	}
}
