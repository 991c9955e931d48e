package wire

import "time"

// A Status is the answer of /throttle/zones, all that `caddy throttle status` shows.
type Status struct {
	Zones     []ZoneStatus `json:"zones"`
	Store     StoreStatus  `json:"store"`
	Overrides []Override   `json:"overrides"`       // the oldest first, also the answer of /throttle/overrides
	Fleet     *Fleet       `json:"fleet,omitempty"` // if a shared store tells changes to others
	Warnings  []Warning    `json:"warnings"`        // of the config that runs
}

// A Fleet is the Caddys that a shared store tells of each other's changes.
type Fleet struct {
	Nodes     []Node `json:"nodes"`               // of the last minute, this one first
	Strangers int    `json:"strangers,omitempty"` // Caddys that sign with other keys, and share no changes
	Foreign   int    `json:"foreign,omitempty"`   // entries that somebody else has written there, which are ignored
	Untold    int    `json:"untold,omitempty"`    // changes that the store does not have yet
	Error     string `json:"error,omitempty"`     // of the last try

	ForeignNames []string `json:"foreign_names,omitempty"` // of some of those entries
}

// A Node is a Caddy of a [Fleet].
type Node struct {
	ID      string    `json:"id"`
	Host    string    `json:"host"`
	PID     int       `json:"pid"`
	Began   time.Time `json:"began"`
	Age     float64   `json:"age"`             // seconds since the store has heard of it
	Current bool      `json:"current"`         // it knows the changes that this one knows
	Zones   []string  `json:"zones,omitempty"` // if they differ from this one's
}

// A ZoneStatus is a zone as `caddy throttle status` shows it.
type ZoneStatus struct {
	Zone  string `json:"zone"`
	Mode  string `json:"mode"`            // enforcing, shadow, or the percent that is enforced
	Group string `json:"group,omitempty"` // with which zones it is judged together in shadow, in words

	Capacity float64 `json:"capacity,omitempty"` // of the zone's own limit, without overrides
	Leak     float64 `json:"leak,omitempty"`     // units a second

	ShadowUntil *time.Time `json:"shadow_until,omitempty"` // by a switch at run time that has an end
	Limit       string     `json:"limit,omitempty"`        // of all keys, by an override at run time

	Total     map[string]float64 `json:"total"` // requests by decision, since the process began
	PerSecond map[string]float64 `json:"per_second"`
	HourAgo   map[string]float64 `json:"per_second_an_hour_ago,omitempty"`

	// Refusals are the refused requests of Total by reason. NearFull counts decisions after
	// which the bucket was over nine tenths full, since the process began, too.
	Refusals map[string]float64 `json:"refusals,omitempty"`
	NearFull uint64             `json:"near_full,omitempty"`

	OverrideFile *OverrideFile `json:"override_file,omitempty"`

	Facts Facts `json:"since_loaded"`

	Buckets     int    `json:"buckets"` // in this process's memory
	RefusedKeys uint64 `json:"refused_keys"`

	Waiting     int `json:"waiting"`
	WaitingMost int `json:"max_waiting,omitempty"` // 0 if requests cannot wait

	InFlight     int `json:"in_flight"`                // slots in use
	InFlightMost int `json:"in_flight_most,omitempty"` // slots of the key that uses most
	Slots        int `json:"slots,omitempty"`          // of each key; 0 means any number

	Share *Slots `json:"share,omitempty"`
}

// Facts are what a zone has met since its config was loaded.
type Facts struct {
	Since    time.Time `json:"since"`
	Requests uint64    `json:"requests"` // of the handlers that have the zone
	Asked    uint64    `json:"asked"`    // of these, those that the zone decided about
	Exempt   uint64    `json:"exempt"`   // or not limited by an override
	Keyless  uint64    `json:"without_key"`
	Keys     uint64    `json:"keys"` // at least, as are the networks: of many requests a sample is looked at
	Networks uint64    `json:"networks"`
	Charged  uint64    `json:"charged"`  // reservations that were kept when the response was known
	Refunded uint64    `json:"refunded"` // reservations that were given back
}

// An OverrideFile says what is in force of a zone's override_file.
type OverrideFile struct {
	File      string    `json:"file"`
	Overrides int       `json:"overrides"`
	Read      time.Time `json:"read"`
	Problem   string    `json:"problem,omitempty"` // why the file, as it is now, is not in force
}

// Slots is what the slots of a zone with share have to do.
type Slots struct {
	Busy        int       `json:"busy"`
	Slots       int       `json:"slots"`
	MeanSeconds float64   `json:"mean_seconds"`
	Rows        []SlotRow `json:"rows"`
	Top         []BusyKey `json:"top"` // by the seconds that they held slots
}

// A SlotRow is a row of a zone with share.
type SlotRow struct {
	Rank    string `json:"rank"`
	Waiting int    `json:"waiting"`
	Ahead   int    `json:"ahead"` // in the rows that are served before it
}

// A BusyKey is a key and for how long it has held slots lately.
type BusyKey struct {
	Key     string  `json:"key"`
	Seconds float64 `json:"seconds"`
}

// A StoreStatus is the store of the config.
type StoreStatus struct {
	Name string `json:"name"`

	// Of a shared store: whether a call failed in the last 10 seconds or the breaker of a
	// shard is open, whether one is open, since when, and why.
	Failing bool       `json:"failing"`
	Down    bool       `json:"down"`
	Since   *time.Time `json:"down_since,omitempty"`
	Why     string     `json:"error,omitempty"`

	// How many shards of a shared store were called, and how many of them are down. A
	// store without shards is one.
	Shards     int `json:"shards,omitempty"`
	ShardsDown int `json:"shards_down,omitempty"`

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

// A Warning is about the config, or about the site around it.
type Warning struct {
	At      time.Time      `json:"at"`
	Text    string         `json:"text"`
	Details map[string]any `json:"details,omitempty"` // zone among them
}
