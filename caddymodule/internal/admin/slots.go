package admin

import (
	"cmp"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/engine"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/sketch"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
)

// busiestShown is how many of the busiest keys the status shows.
const busiestShown = 10

// describeShare describes the slots of a zone with share, or returns nil.
func describeShare(z *engine.Zone, now time.Time) *wire.Slots {
	if z.Share == nil {
		return nil
	}
	load, ahead := z.State.Enforced.Load(), 0
	s := &wire.Slots{
		Busy: load.Running, Slots: cmp.Or(load.Slots, z.InFlight), MeanSeconds: load.Mean.Seconds(),
	}
	for _, k := range z.State.Busiest.Top(sketch.ByKey, busiestShown, now).Busiest {
		s.Top = append(s.Top, wire.BusyKey{Key: k.Name, Seconds: float64(k.Requests) / 1000})
	}
	for _, rank := range telemetry.AllRanks {
		s.Rows = append(s.Rows, wire.SlotRow{Rank: rank.String(), Waiting: load.Waiting[rank], Ahead: ahead})
		ahead += load.Waiting[rank]
	}
	return s
}
