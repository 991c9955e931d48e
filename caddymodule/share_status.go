package caddymodule

import (
	"cmp"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/sketch"
)

// busiestFor is for how long keys are remembered as the busiest ones, at most. A quarter of
// that ends at once.
const busiestFor = 10 * time.Minute

// A busyKey is a key and for how long it has held slots lately.
type busyKey struct {
	Key     string  `json:"key"`
	Seconds float64 `json:"seconds"`
}

// A rowStatus is a row of a zone with share.
type rowStatus struct {
	Rank    string `json:"rank"`
	Waiting int    `json:"waiting"`
	Ahead   int    `json:"ahead"` // in the rows that are served before it
}

// A slotStatus is what the slots of a zone with share have to do.
type slotStatus struct {
	Busy        int         `json:"busy"`
	Slots       int         `json:"slots"`
	MeanSeconds float64     `json:"mean_seconds"`
	Rows        []rowStatus `json:"rows"`
	Top         []busyKey   `json:"top"` // by the seconds that they held slots
}

// busiestShown is how many of the busiest keys the status shows.
const busiestShown = 10

// describeShare describes the slots of a zone with share, or returns nil.
func (z *runningZone) describeShare(now time.Time) *slotStatus {
	if z.Share == nil {
		return nil
	}
	load, ahead := z.live.enforced.Load(), 0
	s := &slotStatus{
		Busy: load.Running, Slots: cmp.Or(load.Slots, z.InFlight), MeanSeconds: load.Mean.Seconds(),
	}
	for _, k := range z.live.busiest.Top(sketch.ByKey, busiestShown, now).Busiest {
		s.Top = append(s.Top, busyKey{k.Name, float64(k.Requests) / 1000})
	}
	for _, rank := range allRanks {
		s.Rows = append(s.Rows, rowStatus{rank.String(), load.Waiting[rank], ahead})
		ahead += load.Waiting[rank]
	}
	return s
}
