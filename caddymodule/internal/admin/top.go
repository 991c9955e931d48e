package admin

import (
	"context"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/engine"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/sketch"
)

var groupings = map[string]sketch.Grouping{"": sketch.ByKey, "ip": sketch.ByAddress, "/24": sketch.By24, "/16": sketch.By16}

const mostTop = 20

// answerTop says who made most requests.
func answerTop(_ context.Context, e *engine.Engine, _ *input, of *wire.TopQuery) (any, error) {
	by, known := groupings[of.By]
	if !known {
		return nil, badRequest("invalid by %q: want ip, /24, /16, or nothing for the keys of the zones", of.By)
	}
	zones, err := zonesNamed(e, of.Zone)
	if err != nil {
		return nil, err
	}
	result, set, now := wire.Top{Zones: []wire.TopZone{}, Shared: e.Shared != nil}, e.Overrides(), time.Now()
	for _, z := range zones {
		s := z.State.Recent.Top(by, mostTop, now)
		keyOf := func(k sketch.Sender) wire.TopKey {
			key := wire.TopKey{Key: k.Name, Requests: k.Requests, Admitted: k.Requests - k.Refused, Refused: k.Refused, Sampled: k.Sampled}
			if by == sketch.ByKey {
				key.Network = shownNetwork(z, k.Name)
			}
			return key
		}
		top := wire.TopZone{
			Zone: z.Name, Mode: z.Mode(set, now), Requests: s.Admitted + s.Refused, Refused: s.Refused, Seconds: now.Sub(s.Since).Seconds(),
			Busiest: converted(s.Busiest, keyOf), Denied: converted(s.MostRefused, keyOf),
		}
		for i := range top.Denied {
			top.Denied[i].Requests = top.Denied[i].Refused
		}
		result.Zones = append(result.Zones, top)
	}
	return result, nil
}
