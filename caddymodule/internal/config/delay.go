package config

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/rule"
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

// longest is for how long requests may be told to wait. More is hardly meant.
const longest = caddy.Duration(24 * time.Hour)

// compile compiles the queue of delayed requests. costs are those that are known.
func (d *Delay) compile(r *rule.Rule, costs []float64) error {
	if err := cmp.Or(withinADay("delay wait", d.Wait), within("delay queue", d.Queue, 1, MostAtOnce), About("delay", 0, checkUndelayed(d.Undelayed, r, costs))); err != nil {
		return err
	}
	r.Delay, r.MaxWait, r.MaxWaiting = &d.Undelayed, time.Duration(d.Wait), d.Queue
	r.MayRefuse(rule.QueueFull)
	return nil
}

// checkUndelayed refuses delays that never delay a request.
func checkUndelayed(undelayed float64, r *rule.Rule, costs []float64) error {
	if !(undelayed >= 0) {
		return fmt.Errorf("invalid delay %v: want a number of units that pass undelayed, or nothing", undelayed)
	}
	if r.Settle != nil && r.Settle.After {
		return errors.New("delay and settle ... after exclude each other: a request that reserves nothing has no place in the queue")
	}
	least := 0.0
	if len(costs) > 0 {
		least = slices.Min(costs)
	}
	if undelayed+least >= r.Limit.Capacity {
		return fmt.Errorf("delay %v delays nothing: every request that fits a capacity of %v passes undelayed; want a larger capacity, since the queue is part of it", undelayed, r.Limit.Capacity)
	}
	return nil
}

// LongestWait returns how long a request of the rule may wait.
func LongestWait(r *rule.Rule) time.Duration {
	if r.Delay == nil {
		return r.MaxWait
	}
	longest := r.Limit.Delay(r.Limit.Capacity, *r.Delay)
	if r.MaxWait > 0 {
		longest = min(longest, r.MaxWait)
	}
	return longest
}
