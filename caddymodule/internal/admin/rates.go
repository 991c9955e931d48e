package admin

import (
	"context"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/engine"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
)

func rateOf(p telemetry.RateAt) wire.Rate {
	return wire.Rate{
		At: p.At, Refused: p.PerSecond[decision.Refused], Shadow: p.PerSecond[decision.ShadowRefused],
		Admitted: p.PerSecond[decision.Admitted] + p.PerSecond[decision.Delayed] + p.PerSecond[decision.ShadowDelayed],
	}
}

// answerRates returns what is plotted.
func answerRates(_ context.Context, e *engine.Engine, _ *Input) (any, error) {
	zones, err := zonesNamed(e, "")
	if err != nil {
		return nil, err
	}
	result := wire.Rates{Hour: make(map[string][]wire.Rate), Day: make(map[string][]wire.Rate)}
	for _, z := range zones {
		hour, day := e.Control.Rates.Plot(z.Name)
		if hour != nil {
			result.Hour[z.Name] = converted(hour, rateOf)
		}
		if day != nil {
			result.Day[z.Name] = converted(day, rateOf)
		}
	}
	return result, nil
}
