package config

import (
	"cmp"
	"slices"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
)

// Delay queues requests instead of passing a burst at once: each waits until what was
// charged before it has leaked.
type Delay struct {
	// How many units pass undelayed. Default: 0, so that requests come evenly.
	Undelayed float64 `json:"undelayed,omitempty"`

	// The longest wait. A request that would have to wait longer is refused. Default: as
	// long as the limit allows.
	Wait caddy.Duration `json:"wait,omitempty"`

	// How many requests of the zone may wait at once on this node. More are refused.
	// Default: 1000. A waiting request uses memory.
	Queue int `json:"queue,omitempty"`
}

// compile compiles the queue of delayed requests. It comes after the costs and settle.
func (d *Delay) compile(r *limit.Rule) error {
	if d == nil {
		return nil
	}
	r.Queue = limit.Queue{Delay: &d.Undelayed, MaxWait: time.Duration(d.Wait), MaxWaiting: d.Queue}
	least := 0.0
	if costs := constants(r); len(costs) > 0 {
		least = slices.Min(costs)
	}
	return cmp.Or(
		Within("delay wait", time.Duration(d.Wait), 0, longest),
		Within("delay queue", d.Queue, 1, MostAtOnce),
		refuse("delay", !(d.Undelayed >= 0), "invalid delay %v: want a number of units that pass undelayed, or nothing", d.Undelayed),
		refuse("delay", r.Settle != nil && r.Settle.After, "delay and settle ... after exclude each other: a request that reserves nothing has no place in the queue"),
		refuse("delay", d.Undelayed+least >= r.Limit.Capacity, "delay %v delays nothing: every request that fits a capacity of %v passes undelayed; want a larger capacity, since the queue is part of it", d.Undelayed, r.Limit.Capacity),
	)
}
