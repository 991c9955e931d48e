package admin

import (
	"context"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/engine"
)

// plotted is how much of the past the plots of the inspector show.
const plotted = 10 * time.Minute

// answerRates returns the rates of all zones over the last ten minutes, oldest first.
// Zones without requests in that time are left out.
func answerRates(_ context.Context, e *engine.Engine, _ *Input) (any, error) {
	zones, err := zonesNamed(e, "")
	if err != nil {
		return nil, err
	}
	result := make(map[string][]wire.Rate)
	for _, z := range zones {
		for _, s := range e.Control.Rates.Plot(z.Name, plotted, time.Now()) {
			result[z.Name] = append(result[z.Name], wire.Rate{
				At: s.At, Refused: s.PerSecond[decision.Refused], Shadow: s.PerSecond[decision.ShadowRefused],
				Admitted: s.PerSecond[decision.Admitted] + s.PerSecond[decision.Delayed] + s.PerSecond[decision.ShadowDelayed],
			})
		}
	}
	return wire.Rates{Zones: result}, nil
}
