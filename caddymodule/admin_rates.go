package caddymodule

import (
	"context"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
)

// plotted is how much of the past the plots of the inspector show.
const plotted = 10 * time.Minute

// adminRates returns the rates of all zones over the last ten minutes, oldest first.
// Zones without requests in that time are left out.
func (a *engine) adminRates(context.Context, *adminInput) (any, error) {
	zones, err := a.zonesNamed("")
	if err != nil {
		return nil, err
	}
	result := make(map[string][]wire.Rate)
	for _, z := range zones {
		if plot := a.control.rates.plot(z.Name, time.Now()); plot != nil {
			result[z.Name] = plot
		}
	}
	return wire.Rates{Zones: result}, nil
}

func (r *rates) plot(zone string, now time.Time) (plot []wire.Rate) {
	r.mu.Lock()
	defer r.mu.Unlock()
	busy := false
	for i := range r.samples {
		if i == 0 || now.Sub(r.samples[i].at) > plotted {
			continue
		}
		rate := between(&r.samples[i-1], &r.samples[i], zone)
		p := wire.Rate{
			At:       r.samples[i].at,
			Admitted: rate[decision.Admitted] + rate[decision.Delayed] + rate[decision.ShadowDelayed],
			Refused:  rate[decision.Refused],
			Shadow:   rate[decision.ShadowRefused],
		}
		busy = busy || p.Admitted+p.Refused+p.Shadow > 0
		plot = append(plot, p)
	}
	if !busy {
		return nil
	}
	return plot
}
