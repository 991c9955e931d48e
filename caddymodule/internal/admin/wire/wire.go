// Package wire is the JSON of the admin API: what is sent to the paths under /throttle/,
// and what they answer. The endpoints fill it, and the commands read it. What a package below
// has for people, such as the journal, stands here as that has it. Begin with [Status].
//
// Names of zones, keys and notes may hold anything that clients or administrators have
// sent. Numbers are in the units of the zone, and spans in seconds, unless said otherwise.
package wire

import (
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/changes"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/sketch"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/supportcode"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
)

// A Top is the answer of /throttle/top.
type Top struct {
	Zones  []TopZone `json:"zones"`  // of the requests of this Caddy
	Shared bool      `json:"shared"` // the store, with other Caddys, whose requests these are not
}

// A TopQuery says who is counted.
type TopQuery struct {
	Zone string `json:"zone,omitempty"` // Default: all
	By   string `json:"by,omitempty"`   // ip, /24 or /16. Default: the keys of the zones
}

// A TopZone is who made the most requests of a zone, about in the last minute.
type TopZone struct {
	Zone     string   `json:"zone"`
	Mode     string   `json:"mode"`     // as in the status
	Requests int      `json:"requests"` // refused ones included
	Refused  int      `json:"refused"`  // by enforcement and shadow
	Seconds  float64  `json:"seconds"`
	Busiest  []TopKey `json:"busiest"`
	Denied   []TopKey `json:"most_refused"`
}

// A TopKey is a key, or the network by which requests are counted.
type TopKey struct {
	sketch.Sender
	Network string `json:"network,omitempty"` // that the key stands for, if the zone masks addresses
}

// Rates is the answer of /throttle/rates: those of each zone or in_flight that had requests in the
// last ten minutes, oldest first.
type Rates struct {
	Zones map[string][]telemetry.Rate `json:"zones"`
}

// A Status is the answer of /throttle/zones, all that `caddy throttle status` shows.
type Status struct {
	Zones     []ZoneStatus            `json:"zones"`
	InFlight  []InFlightStatus        `json:"in_flight"`
	Store     StoreStatus             `json:"store"`
	Overrides []Override              `json:"overrides"`         // the oldest first, also the answer of /throttle/overrides
	Changes   *changes.State          `json:"changes,omitempty"` // if a shared store tells them to other Caddys
	Warnings  []telemetry.KeptWarning `json:"warnings"`          // of the config that runs
}

// A ZoneStatus is a zone as `caddy throttle status` shows it.
type ZoneStatus struct {
	Zone string `json:"zone"`
	Decided

	Capacity float64 `json:"capacity,omitempty"` // of the zone's own limit, without overrides
	Leak     float64 `json:"leak,omitempty"`     // units a second

	Limit string `json:"limit,omitempty"` // of all keys, by an override at run time

	Facts telemetry.Facts `json:"since_loaded"`

	Buckets     int    `json:"buckets"` // in this process's memory
	RefusedKeys uint64 `json:"refused_keys"`

	Waiting     int `json:"waiting"`
	WaitingMost int `json:"max_waiting,omitempty"` // 0 if requests cannot wait
}

// Decided is what a zone or an in_flight decides about requests.
type Decided struct {
	Mode        string     `json:"mode"`                   // enforcing, shadow, or the percent that is enforced
	ShadowUntil *time.Time `json:"shadow_until,omitempty"` // by a switch at run time that has an end

	Total     telemetry.Tally `json:"total"` // requests by decision, since the process began
	PerSecond telemetry.Tally `json:"per_second"`

	Refusals telemetry.Tally `json:"refusals,omitempty"` // the refused requests of Total by reason
}

// An InFlightStatus is an in_flight as `caddy throttle status` shows it.
type InFlightStatus struct {
	Name string `json:"name"`
	Decided

	Slots   int `json:"slots"`   // of each key
	Running int `json:"running"` // requests that hold one, and in shadow all that are in flight
	Waiting int `json:"waiting"`
	Queue   int `json:"queue,omitempty"` // how many may wait; 0 if none may
}

// A StoreStatus is the store of the config.
type StoreStatus struct {
	Name string `json:"name"`

	// Of a shared store: whether a call failed in the last 5 seconds or the circuit breaker
	// is open, whether that is open, since when, and why.
	Failing bool       `json:"failing"`
	Down    bool       `json:"down"`
	Since   *time.Time `json:"down_since,omitempty"`
	Why     string     `json:"error,omitempty"`

	Buckets    int    `json:"buckets"`     // in this process's memory
	MaxBuckets int    `json:"max_buckets"` // there may be
	Evictions  uint64 `json:"evictions"`

	// SnapshotFailing says that the last attempt to keep the snapshot of the memory up to
	// date failed, and SnapshotAge how many seconds ago it was.
	SnapshotFailing bool    `json:"snapshot_failing,omitempty"`
	SnapshotAge     float64 `json:"snapshot_age,omitempty"`
}

// A Bucket is a bucket, its limit and its state.
type Bucket struct {
	Zone     string  `json:"zone"`
	Key      string  `json:"key"`
	Network  string  `json:"network,omitempty"` // that the key stands for, if the zone masks addresses
	Shadow   bool    `json:"shadow,omitempty"`
	Rule     string  `json:"rule"`           // limited, unlimited or deny
	By       string  `json:"by"`             // zone, override or run_time
	From     string  `json:"from,omitempty"` // the place of the override
	Capacity float64 `json:"capacity,omitempty"`
	Leak     float64 `json:"leak,omitempty"` // units a second
	Level    float64 `json:"level"`
	Fraction float64 `json:"fraction"`           // of the capacity
	EmptyIn  float64 `json:"empty_in"`           // seconds
	Blocked  float64 `json:"blocked,omitempty"`  // seconds left
	LastUsed float64 `json:"last_used,omitzero"` // seconds ago; listings only

	Verdict Verdict `json:"verdict"` // what becomes of a request of cost 1 now

	// Share is set while the shared store is down: capacity and leak are then this
	// Caddy's share of the limit.
	Share bool `json:"share,omitempty"`
}

// A Verdict is what becomes of a request now that a zone charges to a bucket.
type Verdict struct {
	Decision string  `json:"decision"`         // admitted, refused or shadow_refused
	Reason   string  `json:"reason,omitempty"` // unless it is admitted; as in the access log
	For      float64 `json:"for,omitempty"`    // seconds until it would fit; 0 if waiting does not help
}

// Refused reports whether the request is refused.
func (v *Verdict) Refused() bool { return v.Decision == "refused" }

// A BucketsQuery says which buckets of a zone are listed.
type BucketsQuery struct {
	Zone        string  `json:"zone"`                   // Required.
	Prefix      string  `json:"prefix,omitempty"`       // of keys
	Shadow      bool    `json:"shadow,omitempty"`       // those of shadow
	MinFraction float64 `json:"min_fraction,omitempty"` // of the capacity; blocked ones are listed anyway
	Refused     bool    `json:"refused,omitempty"`      // only those that refuse a request of cost 1 now, or would in shadow
	Sort        string  `json:"sort,omitempty"`         // level, key or last. Default: level
	Limit       int     `json:"limit,omitempty"`        // up to 1000. Default: 100
}

// Buckets is the answer of /throttle/buckets: the top of one scan of a zone's buckets.
type Buckets struct {
	Buckets []Bucket `json:"buckets"`
	Matched int      `json:"matched"`

	// Complete is false if the time was over before the scan had reached its end.
	Complete bool `json:"complete"`

	// Local is set while the shared store is down: these are the buckets that this Caddy knows.
	Local bool `json:"local,omitempty"`
}

// A ClientQuery names buckets: all of a client, in all zones or in one.
type ClientQuery struct {
	// An address, a network, an account's name, a plain API key or the key of a bucket.
	// Required, but with All.
	Client string `json:"client,omitempty"`

	// All is all clients of the zone; for /throttle/release only.
	All bool `json:"all,omitempty"`

	// The zone. Default: all.
	Zone string `json:"zone,omitempty"`
}

// A Why is the answer of /throttle/why: why a client is refused, or would not be.
type Why struct {
	Code    bool         `json:"code,omitempty"`    // it may be a support code
	Refused bool         `json:"refused"`           // a request of cost 1, by some zone or a ban
	Refusal *PastRefusal `json:"refusal,omitempty"` // if the client is given by a support code

	// Refusals are the last by each key of each zone, of an address or a network, that are
	// remembered with a support code. The newest comes first; there are at most 10.
	Refusals []PastRefusal `json:"refusals,omitempty"`

	Ban      *Override `json:"ban,omitempty"`
	Buckets  []Bucket  `json:"buckets"`
	Complete bool      `json:"complete"`
	Problem  string    `json:"problem,omitempty"`
	Local    bool      `json:"local,omitempty"` // as in Buckets

	// Unlisted are keys that no override lists, of zones that charge their requests
	// elsewhere or not at all.
	Unlisted []UnlistedKey `json:"unlisted,omitempty"`

	// Shadows are the switches at run time of the zones of these buckets, or of all.
	// These zones refuse nothing.
	Shadows []Override `json:"shadows,omitempty"`
}

// An UnlistedKey is one that no override of a zone with key unlisted lists.
type UnlistedKey struct {
	Zone   string `json:"zone"`
	Key    string `json:"key"`
	Policy string `json:"unlisted_key"` // client_ip, share, skip or refuse
}

// A PastRefusal is a refusal with a support code, as it was then.
type PastRefusal struct {
	Code    string `json:"code"`
	Network string `json:"network,omitempty"` // that the key stands for
	supportcode.Refusal
}

// A Released is the answer of /throttle/release.
type Released struct {
	Freed []string `json:"freed"` // zone/key of buckets that were not empty, with ~ for shadow; up to 100
	Count int      `json:"count"` // how many there were

	// Banned is set if a ban still holds for the address.
	Banned bool `json:"banned,omitempty"`

	// Complete is false if the store is down, has failed or could not be searched through.
	// Problem says why, unless there were too many.
	Complete bool   `json:"complete"`
	Problem  string `json:"problem,omitempty"`
}

// A Change describes a change at run time, or the end of one.
type Change struct {
	// How long it holds. At most 720h, which is the default.
	For caddy.Duration `json:"for,omitempty"`

	Note string `json:"note,omitempty"`

	// Replace lets it replace another that holds for the same. Otherwise that is an error.
	Replace bool `json:"replace,omitempty"`

	// The zone. Empty means all zones, for shadow alone.
	Zone string `json:"zone,omitempty"`

	// The key of the one bucket whose limit changes, or an address, the network that the
	// key stands for, or a plain value of a secret part. Empty means all of the zone.
	Key string `json:"key,omitempty"`

	// A factor such as x0.5, a capacity and a leak such as "10 1/s", the name of a plan,
	// unlimited, or deny.
	Limit string `json:"limit,omitempty"`

	// The network that is banned: an address, or a network in CIDR notation.
	Network string `json:"network,omitempty"`
}

// An Ended says whether there was something to end.
type Ended struct {
	Ended bool  `json:"ended"`
	Sync  *Sync `json:"sync,omitempty"` // where that holds; nil if there was nothing to end
}

// A Sync says where a change holds, or the end of one.
type Sync = changes.Sync

// An Override is a change that holds.
type Override struct {
	override.Entry
	Network string `json:"network,omitempty"` // that is banned, or that the key stands for
	Hits    uint64 `json:"hits,omitempty"`    // requests and connections that a ban has refused in this process

	Sync *Sync `json:"sync,omitempty"` // where it holds, if it was made just now
}

// A Journal is the answer of /throttle/journal, the last change first.
type Journal []JournalEntry

// A JournalEntry is a change, or a release.
type JournalEntry = override.Change

// ByHeader is the header in which a command says who uses it.
const ByHeader = "Throttle-By"
