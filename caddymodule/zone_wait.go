package caddymodule

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// Block says how an overflow blocks its key.
type Block struct {
	// For how long: each longer than the one before. The next one counts when a
	// key overflows again within the last one's length after it ended. Default:
	// until the bucket is empty.
	For []caddy.Duration `json:"for,omitempty"`

	// Refuse the client in every throttle handler of this Caddy, not in those of
	// the zone only. The key must be the client's address.
	Everywhere bool `json:"everywhere,omitempty"`

	ladder leakybucket.Ladder
}

const (
	defaultMaxWaiting = 1000
	mostAtOnce        = 1_000_000

	// patientClient is about how long clients wait for an answer.
	patientClient = 30 * time.Second
)

// compileWaits checks what lets requests wait, or be served at the same time.
func (z *Zone) compileWaits() error {
	z.about("delay", 0)
	if z.Delay != nil {
		if err := z.checkDelay(*z.Delay); err != nil {
			return err
		}
	}
	z.about("max_wait", 0)
	switch {
	case z.MaxWait < 0:
		return fmt.Errorf("invalid max_wait %v: want a duration above 0, such as 10s", time.Duration(z.MaxWait))
	case z.MaxWait > 0 && z.Delay == nil && !z.bucketless():
		return errors.New("max_wait has no meaning without delay: what fits passes at once")
	}
	z.about("max_waiting", 0)
	if z.MaxWaiting != 0 && !z.letsWait() {
		return errors.New("max_waiting has no meaning: nothing waits without delay, or without in_flight and max_wait")
	}
	if z.MaxWaiting == 0 {
		z.MaxWaiting = defaultMaxWaiting
	}
	return nil
}

// checkDelay refuses delays that could never delay anything.
func (z *Zone) checkDelay(undelayed float64) error {
	if !(undelayed >= 0) {
		return fmt.Errorf("invalid delay %v: want a number of units that pass undelayed, or nothing", undelayed)
	}
	if z.Settle != nil && z.Settle.After {
		return errors.New("delay and settle ... after exclude each other: who reserves nothing has no place in a row")
	}
	least := 0.0
	if costs := z.constants(); len(costs) > 0 {
		least = slices.Min(costs)
	}
	if undelayed+least >= z.limit.Capacity {
		return fmt.Errorf("delay %v leaves no room to wait in: what fits a capacity of %v passes undelayed; want a larger capacity, since what waits is part of it", undelayed, z.limit.Capacity)
	}
	return nil
}

// letsWait reports whether requests may wait in the zone.
func (z *Zone) letsWait() bool { return z.Delay != nil || z.MaxWait > 0 }

// bucketless reports whether the zone only counts what is served at the same
// time.
func (z *Zone) bucketless() bool { return z.limit.Capacity == 0 }

// compileBucketless sees to it that a zone without a capacity says nothing that
// needs one.
func (z *Zone) compileBucketless() error {
	for _, o := range []struct {
		option string
		given  bool
	}{
		{"cost", len(z.Cost) > 0},
		{"unread_body_cost", z.UnreadBodyCost != nil},
		{"settle", z.Settle != nil},
		{"debt", z.Debt != nil},
		{"delay", z.Delay != nil},
		{"block", z.Block != nil},
		{"retry_after", z.RetryAfter != ""},
		{"retry_jitter", z.RetryJitter != 0},
	} {
		if z.about(o.option, 0); o.given {
			return fmt.Errorf("%s has no meaning without capacity and leak: the zone only counts what is in flight", o.option)
		}
	}
	return nil
}

// longestWait returns how long a request may be delayed.
func (z *Zone) longestWait() time.Duration {
	switch {
	case z.Delay == nil:
		return time.Duration(z.MaxWait)
	case z.MaxWait > 0:
		return min(time.Duration(z.MaxWait), z.limit.Delay(z.limit.Capacity, *z.Delay))
	}
	return z.limit.Delay(z.limit.Capacity, *z.Delay)
}

// ceiling returns how high a request may fill the bucket so that it waits no
// longer than it may, or 0 if it may for as long as it takes.
func (z *Zone) ceiling(limit leakybucket.Limit, cost float64) float64 {
	if z.Delay == nil || z.MaxWait == 0 {
		return 0
	}
	return limit.Ceiling(cost, *z.Delay, time.Duration(z.MaxWait))
}

func (z *Zone) compileBlock() error {
	if z.Block == nil {
		return nil
	}
	z.about("block", 0)
	z.Block.ladder.Steps = nil
	for _, step := range z.Block.For {
		z.Block.ladder.Steps = append(z.Block.ladder.Steps, time.Duration(step))
	}
	if err := z.Block.ladder.Validate(); err != nil {
		return err
	}
	if z.Block.Everywhere && (len(z.Key) != 1 || !z.addresses[0]) {
		return errors.New("block ... everywhere goes with the key client_ip alone: nothing else says who a client is in every zone")
	}
	return nil
}

// ladder returns what an overflow begins, or nil if that is nothing.
func (z *Zone) ladder() *leakybucket.Ladder {
	if z.Block == nil {
		return nil
	}
	return &z.Block.ladder
}
