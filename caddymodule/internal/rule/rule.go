// Package rule holds a compiled zone: whom it concerns, which bucket a request has there,
// its limit and its cost. A [Rule] is built once, by package config, of parts that have a file
// each, and never changes but for the lines of an override_file. What runs of a zone stands
// beside its rule; see package decision. Begin with [Matching.Concerns].
package rule

import (
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/device"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/settlement"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// A Rule is a compiled zone: everything in its config, checked and resolved. Requests share
// it without locks.
type Rule struct {
	Name string

	Matching
	Key Key

	// Limit is the zone's own limit. The zero Limit means that the zone has no
	// buckets and only limits how many requests are in flight.
	Limit leakybucket.Limit
	Cost  Cost

	Settle *settlement.Rule // nil means that charges are not corrected
	Trust  *device.Trust    // nil means that no devices are trusted

	Queue
	Slots
	Blocking
	Refusal
	Mode
}

// SlotsOnly reports whether the zone only limits how many requests are in flight.
func (r *Rule) SlotsOnly() bool { return r.Limit.Capacity == 0 }

// QueuesForSlots reports whether requests wait for a slot when none is free.
func (r *Rule) QueuesForSlots() bool { return r.SlotsOnly() && r.MaxWait > 0 }

// LongestWait returns how long a request may wait.
func (r *Rule) LongestWait() time.Duration {
	if r.Delay == nil {
		return r.MaxWait
	}
	longest := r.Limit.Delay(r.Limit.Capacity, *r.Delay)
	if r.MaxWait > 0 {
		longest = min(longest, r.MaxWait)
	}
	return longest
}

// EndsAtAdmission reports whether the zone has no more to do with a request once it is admitted:
// it lets none wait, limits none in flight, and learns nothing from responses.
func (r *Rule) EndsAtAdmission() bool {
	return !r.LetsWait() && r.InFlight == 0 && r.Share == nil && r.Settle == nil && r.Trust == nil && len(r.Static) == 0
}
