package caddymodule

import (
	"cmp"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/sketch"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
)

// busiestFor is for how long keys are remembered as the busiest ones, at most. A quarter of
// that ends at once.
const busiestFor = 10 * time.Minute

// busiestShown is how many of the busiest keys the status shows.
const busiestShown = 10

// describeShare describes the slots of a zone with share, or returns nil.
func (z *runningZone) describeShare(now time.Time) *wire.Slots {
	if z.Share == nil {
		return nil
	}
	load, ahead := z.live.enforced.Load(), 0
	s := &wire.Slots{
		Busy: load.Running, Slots: cmp.Or(load.Slots, z.InFlight), MeanSeconds: load.Mean.Seconds(),
	}
	for _, k := range z.live.Busiest.Top(sketch.ByKey, busiestShown, now).Busiest {
		s.Top = append(s.Top, wire.BusyKey{Key: k.Name, Seconds: float64(k.Requests) / 1000})
	}
	for _, rank := range telemetry.AllRanks {
		s.Rows = append(s.Rows, wire.SlotRow{Rank: rank.String(), Waiting: load.Waiting[rank], Ahead: ahead})
		ahead += load.Waiting[rank]
	}
	return s
}
