package wire

import (
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/changes"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
)

// A Status is the answer of /throttle/zones, all that `caddy throttle status` shows.
type Status struct {
	Zones     []ZoneStatus            `json:"zones"`
	InFlight  []InFlightStatus        `json:"in_flight"`
	Kept      KeptStatus              `json:"kept"`
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

	// NearFull counts decisions after which the bucket was over nine tenths full, since the
	// process began.
	NearFull uint64 `json:"near_full,omitempty"`

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

	Total     map[string]float64 `json:"total"` // requests by decision, since the process began
	PerSecond map[string]float64 `json:"per_second"`
	HourAgo   map[string]float64 `json:"per_second_an_hour_ago,omitempty"`

	Refusals map[string]float64 `json:"refusals,omitempty"` // the refused requests of Total by reason
}

// An InFlightStatus is an in_flight as `caddy throttle status` shows it.
type InFlightStatus struct {
	Name string `json:"name"`
	Decided

	Slots       int `json:"slots"`                  // of each key
	Running     int `json:"running"`                // requests that hold one, and in shadow all that are in flight
	RunningMost int `json:"running_most,omitempty"` // of the key that has most

	Waiting int        `json:"waiting"`
	Queue   int        `json:"queue,omitempty"` // how many may wait; 0 if none may
	Ranks   []RankWait `json:"ranks,omitempty"` // who waits, with share, in the order of service

	MeanSeconds float64 `json:"mean_seconds,omitempty"` // for which a slot is held, with share
}

// A RankWait is how many requests of a rank wait.
type RankWait struct {
	Rank    string `json:"rank"`
	Waiting int    `json:"waiting"`
}

// A KeptStatus is what received bodies take, and responses that wait for their clients, in bytes.
type KeptStatus struct {
	Memory int64 `json:"memory"`
	File   int64 `json:"file"`
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

	// Calls of a shared store a second, how many of those failed, and how many seconds
	// one took on average.
	Calls  float64 `json:"calls_per_second"`
	Failed float64 `json:"errors_per_second"`
	Took   float64 `json:"call_seconds"`

	Buckets    int    `json:"buckets"`     // in this process's memory
	MaxBuckets int    `json:"max_buckets"` // there may be
	Evictions  uint64 `json:"evictions"`

	// SnapshotFailing says that the last attempt to keep the snapshot of the memory up to
	// date failed, and SnapshotAge how many seconds ago it was.
	SnapshotFailing bool    `json:"snapshot_failing,omitempty"`
	SnapshotAge     float64 `json:"snapshot_age,omitempty"`
}
