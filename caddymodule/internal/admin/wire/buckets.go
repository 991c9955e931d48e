package wire

import "github.com/caddy-throttle/caddy-throttle/caddymodule/internal/supportcode"

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

	// Verdict is what becomes of a request of cost 1 now, or of the one that was checked.
	// Dearest is what becomes of one of the zone's highest constant cost, if that is above 1.
	Verdict Verdict  `json:"verdict"`
	Dearest *Verdict `json:"dearest,omitempty"`

	// Share is set while the shared store is down: capacity and leak are then this
	// Caddy's share of the limit.
	Share bool `json:"share,omitempty"`
}

// A Verdict is what becomes of a request now that a zone charges to a bucket.
type Verdict struct {
	Cost     float64 `json:"cost"`             // of the request, in units
	Decision string  `json:"decision"`         // admitted, refused or shadow_refused
	Reason   string  `json:"reason,omitempty"` // unless it is admitted; as in the access log
	By       string  `json:"by,omitempty"`     // bucket, block, block everywhere, ban, override, key or store
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
	Client  string       `json:"client"`
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
	Client string   `json:"client,omitempty"`
	Freed  []string `json:"freed"` // zone/key of buckets that were not empty, with ~ for shadow; up to 100
	Count  int      `json:"count"` // how many there were

	// Banned is set if a ban still holds for the address.
	Banned bool `json:"banned,omitempty"`

	// Complete is false if the store is down or could not be searched through. Problem says
	// why, unless there were too many.
	Complete bool   `json:"complete"`
	Problem  string `json:"problem,omitempty"`

	// Failed says why some buckets could not be emptied.
	Failed string `json:"failed,omitempty"`
}
