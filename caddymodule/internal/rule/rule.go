// Package rule holds a compiled zone: whom it concerns, which bucket a request has there,
// its limit and its cost. A [Rule] is built once, by package config, and never changes but for
// the lines of an override_file.
// What runs of a zone stands beside its rule; see package decision. Begin with
// [Rule.Concerns].
package rule

import (
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/device"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/pass"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/settlement"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/staticfile"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// A Rule is a compiled zone: everything in its config, checked and resolved. Requests share
// it without locks.
type Rule struct {
	Name string

	Match, Exempt Matchers              // nil Match matches all, nil Exempt exempts nothing
	Static        []*staticfile.Matcher // exempt static files

	Key  Key
	Cost Cost

	// Limit is the zone's own limit. The zero Limit means that the zone has no
	// buckets and only limits how many requests are in flight.
	Limit leakybucket.Limit
	Debt  *float64 // units; nil means one capacity

	// MaxCost is the highest constant cost, in units.
	MaxCost float64

	Block      *leakybucket.Ladder // nil means that overflows begin no block
	Everywhere bool                // blocks hold in all handlers

	Settle *settlement.Rule // nil means that charges are not corrected

	Trust *device.Trust // nil means that no devices are trusted

	Delay      *float64      // units that pass undelayed; nil means no delay
	MaxWait    time.Duration // zero means no bound for the bucket, and no wait for a slot
	MaxWaiting int
	Slots

	Shadow  leakybucket.Shadow // the word that has put the zone there; 0 if the config has none
	Enforce int                // percent of the keys; the others are in shadow

	// ServerTiming marks responses to requests that the zone would have refused.
	ServerTiming bool

	// Refusals are the reasons for which the config may have the zone refuse, and
	// EnforcedRefusals those that only enforced zones know. Compiling each part adds its own.
	Refusals, EnforcedRefusals ReasonSet

	Refusal
}

// MayRefuse adds reasons for which the zone may refuse.
func (r *Rule) MayRefuse(why ...Reason) { r.Refusals = r.Refusals.With(why...) }

// A Concern is whether a zone charges a request.
type Concern uint8

// The concerns.
const (
	Unmatched Concern = iota
	Exempted          // by the zone's own matchers
	Static            // exempt, because a static file answers it
	Concerned
)

// Concerns reports whether the zone charges a request, and if not, why. The error is that of
// a matcher.
func (r *Rule) Concerns(s *Subject) (Concern, error) {
	if r.Match != nil {
		if match, err := s.Matches(r.Match); err != nil || !match {
			return Unmatched, matcherError("match", err)
		}
	}
	if exempt, err := r.Exempts(s); err != nil {
		return Unmatched, err
	} else if exempt {
		return Exempted, nil
	}
	for _, files := range r.Static {
		if files.Match(s.Request) {
			return Static, nil
		}
	}
	return Concerned, nil
}

// Exempts reports whether the zone's own matchers exempt a request. Static files do
// not count.
func (r *Rule) Exempts(s *Subject) (bool, error) {
	if r.Exempt == nil {
		return false, nil
	}
	exempt, err := s.Spares(r.Exempt)
	return exempt, matcherError("exempt", err)
}

// A MatcherError is the error of a matcher.
type MatcherError struct {
	Option string // whose matcher it is: match, exempt or cost
	Err    error
}

// Error implements error.
func (e *MatcherError) Error() string { return e.Option + ": " + e.Err.Error() }

// Unwrap returns the matcher's own error.
func (e *MatcherError) Unwrap() error { return e.Err }

func matcherError(option string, err error) error {
	if err == nil {
		return nil
	}
	return &MatcherError{option, err}
}

// SlotsOnly reports whether the zone only limits how many requests are in flight.
func (r *Rule) SlotsOnly() bool { return r.Limit.Capacity == 0 }

// EndsAtAdmission reports whether the zone has no more to do with a request once it is admitted:
// it lets none wait, limits none in flight, and learns nothing from responses.
func (r *Rule) EndsAtAdmission() bool {
	return !r.LetsWait() && r.InFlight == 0 && r.Share == nil && r.Settle == nil && r.Trust == nil && len(r.Static) == 0
}

// LetsWait reports whether requests may wait in the zone.
func (r *Rule) LetsWait() bool { return r.Delay != nil || r.MaxWait > 0 }

// QueuesForSlots reports whether requests wait for a slot when none is free.
func (r *Rule) QueuesForSlots() bool { return r.SlotsOnly() && r.MaxWait > 0 }

// Enforces reports whether, by the config, overflows of a key are refused and not just
// counted.
func (r *Rule) Enforces(key string) bool { return r.Shadow == 0 && r.chooses(key) }

// chooses reports whether a key is among those that enforce chooses. The hash has no
// seed, so all nodes and all zones choose the same keys.
func (r *Rule) chooses(key string) bool {
	return r.Enforce == 100 || xxhash.Sum64String(key)%100 < uint64(r.Enforce)
}

// debt returns how far above the capacity a settlement may lift a bucket with this
// limit, in units.
func (r *Rule) debt(limit leakybucket.Limit) float64 {
	switch {
	case r.Settle == nil:
		return 0
	case r.Debt != nil:
		return *r.Debt
	}
	return limit.Capacity
}

// Limits returns a charge for each limit that a bucket of the zone may have, with its
// debt and its block. The zone's own limit comes first.
func (r *Rule) Limits() (all []leakybucket.Charge) {
	for _, limit := range r.Key.Overrides.Load().Limits() {
		all = append(all, leakybucket.Charge{Limit: limit, Debt: r.debt(limit), Block: r.Block})
	}
	if r.Trust != nil {
		all = append(all, leakybucket.Charge{Limit: PlaceLimit(r.Trust)})
	}
	if r.Ranks.LearnsMembers() {
		all = append(all, leakybucket.Charge{Limit: MemberLimit})
	}
	return all
}

// Charge makes c, which must be zero, the charge of a cost to the bucket of a key.
func (r *Rule) Charge(c *leakybucket.Charge, k *Bucket, shadow leakybucket.Shadow, cost float64) {
	// Field by field, that is cheaper than a copy.
	c.Zone, c.Key, c.Shadow = r.Name, k.Name, shadow
	c.Limit, c.Cost, c.Debt, c.Block = k.Limit, cost, r.debt(k.Limit), r.Block
	c.Probe = r.Settle != nil && r.Settle.After
	if r.Delay != nil {
		c.Undelayed = *r.Delay
		if r.MaxWait > 0 {
			c.Ceiling = k.Limit.Ceiling(cost, *r.Delay, r.MaxWait)
		}
	}
}

// DeviceClient returns what device cookies tell of a request to an account, or nil if the
// zone trusts no devices or the request names no account.
func (r *Rule) DeviceClient(s *Subject, k *Bucket) *device.Client {
	if r.Trust == nil || !k.own {
		return nil
	}
	host := Host(s)
	if host == "" {
		return nil
	}
	return r.Trust.Client(s.Request, host, k.Name, time.Now())
}

// DeviceKey returns the key of a client's device, or "" if none is known for the
// account. No client can spell it, since a leading @ is escaped in parts.
func DeviceKey(account string, client *device.Client) string {
	name, known := client.Device()
	if !known {
		return ""
	}
	return account + "/@device/" + name
}

// AccountOf returns the key of the account whose device has a bucket of this name, or
// the name itself.
func AccountOf(name string) string {
	account, _, _ := strings.Cut(name, "/@device/")
	return account
}

// PlaceLimit is that of a place for a device.
func PlaceLimit(t *device.Trust) leakybucket.Limit {
	return leakybucket.Limit{Capacity: 1, Leak: 1 / t.For.Seconds()}
}

// The groups of shadow: which word has put a zone there. Zones of one group are judged
// together, as after the edit that takes the word away. Groups from ShadowOwn on are of
// one zone, which has a word of its own. A group has a meaning for one request only.
const (
	ShadowGlobal leakybucket.Shadow = iota + 1 // shadow in the global options
	ShadowSwitch                               // the switch at run time for all zones
	ShadowBeside                               // shadow beside the zones of a handler
	ShadowOwn                                  // shadow or enforce in the zone, or its switch at run time
)

// GroupOf returns the group of a request with this key, or 0 if it is enforced.
func (r *Rule) GroupOf(s *Subject, key string) leakybucket.Shadow {
	if !r.chooses(key) {
		return ShadowOwn
	}
	return r.Group(s.Overrides)
}

// Group returns the group of the keys that the zone does not leave to shadow by enforce,
// or 0 if it is enforced for them. Without overrides, the config alone counts.
func (r *Rule) Group(overrides *override.Set) leakybucket.Shadow {
	if r.Shadow != 0 || overrides == nil {
		return r.Shadow
	}
	now := time.Now()
	switch {
	case !overrides.Shadow(r.Name, now):
		return 0
	case overrides.AllShadow(now):
		return ShadowSwitch
	}
	return ShadowOwn
}

// Pass returns what issues the passes of the zone, or nil if the zone sends none.
func (r *Rule) Pass() *pass.Zone {
	if r.Ranks == nil {
		return nil
	}
	return r.Ranks.Pass
}
