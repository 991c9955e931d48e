// Package rule holds a compiled zone: whom it concerns, which bucket a request has there,
// its limit and its cost. A [Rule] is built once, by package config, and never changes but for
// the lines of an override_file. What runs of a zone stands beside its rule; see package
// decision. A [Subject] is a request as rules see it. Begin with [Matching.Concerns].
package limit

import (
	"time"

	"github.com/cespare/xxhash/v2"
	"golang.org/x/time/rate"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/device"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/form"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/refusal"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// A Rule is a compiled zone: everything in its config, checked and resolved. Requests share
// it without locks.
type Rule struct {
	Name string

	Matching
	Fields []string     // of which a request must carry one; empty means that it need not
	wanted []form.Field // these, in the plan of the Key
	Key    Key

	Limit leakybucket.Limit // the zone's own
	Cost  Cost

	Settle *Settle       // nil means that charges are not corrected
	Refund Refunds       // empty means that nothing is refunded
	Trust  *device.Trust // nil means that no devices are trusted

	Queue
	Blocking
	Refusal
	Mode
}

// LongestWait returns how long a request may wait.
func (r *Rule) LongestWait() time.Duration {
	if r.Delay == nil {
		return 0
	}
	longest := r.Limit.Delay(r.Limit.Capacity, *r.Delay)
	if r.MaxWait > 0 {
		longest = min(longest, r.MaxWait)
	}
	return longest
}

// EndsAtAdmission reports whether the zone has no more to do with a request once it is admitted:
// it lets none wait, and learns nothing from responses.
func (r *Rule) EndsAtAdmission() bool {
	return r.Delay == nil && r.Settle == nil && len(r.Refund) == 0 && len(r.Static) == 0
}

// Limits returns a charge for each limit that a bucket of the zone may have, with its
// debt and its block. The zone's own limit comes first.
func (r *Rule) Limits() (all []leakybucket.Charge) {
	for _, limit := range r.Key.Overrides.Load().Limits() {
		all = append(all, leakybucket.Charge{Limit: limit, Debt: r.Settle.DebtUnder(limit), Block: r.Block})
	}
	return all
}

// Terms returns on which terms the zone charges a cost to a bucket with this limit, as in
// [leakybucket.Charge].
func (r *Rule) Terms(limit leakybucket.Limit, cost float64) (debt, ceiling float64, probe bool) {
	if r.Delay != nil && r.MaxWait > 0 {
		ceiling = limit.Ceiling(cost, *r.Delay, r.MaxWait)
	}
	return r.Settle.DebtUnder(limit), ceiling, r.Settle != nil && r.Settle.After
}

// Charge returns the charge of a cost to the bucket of a key.
func (r *Rule) Charge(k *Bucket, shadow bool, cost float64) leakybucket.Charge {
	c := leakybucket.Charge{Zone: r.Name, Key: k.Name, Shadow: shadow, Limit: k.Limit, Cost: cost, Block: r.Block}
	c.Debt, c.Ceiling, c.Probe = r.Terms(k.Limit, cost)
	if r.Delay != nil {
		c.Undelayed = *r.Delay
	}
	return c
}

// Peek returns a charge that shows the state of a bucket, and pours and begins nothing:
// its cost fits no bucket.
func (r *Rule) Peek(name string, limit leakybucket.Limit, shadow bool) leakybucket.Charge {
	c := r.Charge(&Bucket{Name: name, Limit: limit}, shadow, -1)
	c.Probe = true
	return c
}

// Queue is how requests wait until what was charged before them has leaked.
type Queue struct {
	Delay      *float64      // units that pass undelayed; nil means that no request waits
	MaxWait    time.Duration // zero means as long as the limit allows
	MaxWaiting int
}

// Blocking is what an overflow begins.
type Blocking struct {
	Block      *leakybucket.Ladder // nil means that overflows begin no block
	Everywhere bool                // blocks hold in all handlers
}

// A Refusal is what clients get that a zone refuses.
type Refusal struct {
	Status  int
	Message string        // to people; may be empty
	Page    *refusal.Page // nil means the built-in page
	AsError bool          // the site's error routes answer instead

	RetryEmpty  bool          // Retry-After says the time to empty
	RetryFloor  time.Duration // the least that Retry-After says
	RetryJitter float64       // the most that is added, as a fraction of the wait

	ZoneHeader  bool // name the zone in a header
	SupportCode bool // have a code that visitors may tell

	LogLimit *rate.Limiter // of refusals in the access log; nil if there is none
}

// Mode is for whom a zone is enforced. For all others it is a dry run.
type Mode struct {
	Shadow  bool // for nobody, by the config
	Enforce int  // percent of the keys; the others are in shadow

	// ServerTiming marks responses to requests that the zone would have refused.
	ServerTiming bool
}

// InShadow reports whether the zone only counts requests with this key.
func (r *Rule) InShadow(overrides *override.Set, key string) bool {
	return r.Shadow || !r.chooses(key) || overrides != nil && overrides.Shadow(r.Name, time.Now())
}

// chooses reports whether a key is among those that enforce chooses. The hash has no
// seed, so all nodes and all zones choose the same keys.
func (m *Mode) chooses(key string) bool {
	return m.Enforce == 100 || xxhash.Sum64String(key)%100 < uint64(m.Enforce)
}
