// Package caddymodule is a Caddy handler that protects upstreams with leaky
// buckets.
package caddymodule

import (
	"encoding/json"
	"regexp"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	bucketkey "github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

// Zone is a named rule: which requests it is about, whose bucket they are
// charged to, how much that bucket holds, and what happens when it overflows.
// A zone is one budget wherever its name appears; definitions of one name must
// be equal. A zone with nothing but a name stands for the one that is defined
// in the global options.
type Zone struct {
	// Letters, digits, `_`, `.` and `-`. Required.
	Name string `json:"name,omitempty"`

	// Which requests are charged. Default: all.
	Match caddyhttp.RawMatcherSets `json:"match,omitempty" caddy:"namespace=http.matchers"`

	// Which of these are not. Default: none.
	Exempt caddyhttp.RawMatcherSets `json:"exempt,omitempty" caddy:"namespace=http.matchers"`

	// What tells one bucket from another. Default: the client's address.
	Key []KeySource `json:"key,omitempty"`

	// What to do with requests of which a part of the key is missing or empty:
	// `client_ip` charges a bucket of their client's address, `share` charges
	// one bucket that all of them share, `skip` lets them pass, `refuse` refuses
	// them. Default: `client_ip`.
	MissingKey string `json:"missing_key,omitempty"`

	// What to do with requests whose key no override names, in the words of
	// missing_key. Default: charge their own bucket.
	UnlistedKey string `json:"unlisted_key,omitempty"`

	// Whether values of headers, cookies and query parameters are kept readable
	// in logs and in the store. By default they are kept as digests, since they
	// are secrets as often as not.
	PlainKeys bool `json:"plain_keys,omitempty"`

	// How many leading bits of an IPv4 address make a client. Default: 32.
	IPv4Prefix int `json:"ipv4_prefix,omitempty"`

	// How many leading bits of an IPv6 address make a client. Default: 64,
	// since a single customer has at least as many addresses as that.
	IPv6Prefix int `json:"ipv6_prefix,omitempty"`

	// Names for the key source `route`, the first match first. What matches
	// none is `other`.
	Route []Route `json:"route,omitempty"`

	// How much a bucket holds before it overflows, in units of cost. Required,
	// unless there is in_flight.
	Capacity float64 `json:"capacity,omitempty"`

	// How fast a bucket drains, such as `2/s`, `30/m`, `1000/h` or `5000/d`.
	// Required with a capacity.
	Leak string `json:"leak,omitempty"`

	// Other limits for some keys. The one that names most parts of the key
	// holds.
	Override []bucketkey.Override `json:"override,omitempty"`

	// What a request costs: the first that matches. Default: 1.
	Cost []Cost `json:"cost,omitempty"`

	// How much of a body is read to find out its cost or key, in bytes. What is
	// longer counts as unread. Default: 65536.
	MaxBody int64 `json:"max_body,omitempty"`

	// What a request costs whose body was not read, or not understood. Default:
	// the capacity, so that it passes only into an empty bucket.
	UnreadBodyCost *float64 `json:"unread_body_cost,omitempty"`

	// How to correct the charge once the response is known. Default: not.
	Settle *Settle `json:"settle,omitempty"`

	// How far above the capacity a correction may lift the level. Default: the
	// capacity.
	Debt *float64 `json:"debt,omitempty"`

	// Let requests wait until what is before them has leaked, all but so many
	// units of it, instead of letting them pass at once. Default: they pass.
	Delay *float64 `json:"delay,omitempty"`

	// How long a request waits at most, for what is before it to leak, or in a
	// zone without a capacity for one of in_flight; what would wait longer is
	// refused. Default: as long as the capacity says, and not for in_flight.
	MaxWait caddy.Duration `json:"max_wait,omitempty"`

	// How many requests of the zone wait at the same time, at most, on this
	// node. Default: 1000.
	MaxWaiting int `json:"max_waiting,omitempty"`

	// How many requests of a key are served at the same time, at most, on this
	// node. Default: any number.
	InFlight int `json:"in_flight,omitempty"`

	// Refuse a key for a while after an overflow. Default: only what overflows.
	Block *Block `json:"block,omitempty"`

	// What to do when a store that is shared does not answer: `local`, `allow` or
	// `deny`. Default: what the global options say.
	OnStoreError string `json:"on_store_error,omitempty"`

	// What Retry-After says: `empty`, the time until the bucket is empty; `fit`,
	// the time until the request would fit; or a duration, which is said
	// wherever it is longer than the time to fit. Default: `empty`.
	RetryAfter string `json:"retry_after,omitempty"`

	// How many percent longer than need be refused clients are told to wait, at
	// most. Each is told something else, so that they do not all come back in
	// the same second. Default: 0.
	RetryJitter int `json:"retry_jitter,omitempty"`

	// The status of a refusal, from 400 to 599. Default: 429.
	Status int `json:"status,omitempty"`

	// A file of HTML to refuse with, in which placeholders are filled in and
	// their values escaped. It is read when the config is loaded. Default: a
	// short page of our own.
	Page string `json:"page,omitempty"`

	// How to refuse: `page` writes the answer here, `error` leaves it to the
	// site's error routes, which cost more than most pages and may run the very
	// upstream that is to be protected. Default: `page`.
	Refuse string `json:"refuse,omitempty"`

	// Decide, count and log as enforcement would, but never refuse.
	Shadow bool `json:"shadow,omitempty"`

	// For how many percent of the keys the zone is enforced; for the rest it is
	// a shadow. Which keys depends on the keys alone, and those enforced at a
	// lower percentage still are at a higher one. Default: 100.
	Enforce int `json:"enforce,omitempty"`

	// Where in a Caddyfile it stands, or what of it is looked at, and where the
	// words in it stand, for error messages.
	place  string
	places map[string][]string

	limit         leakybucket.Limit // zero if the zone has none
	table         *bucketkey.Table
	parts         []part
	addresses     []bool
	formKey       bool // a part of the key is in the body
	retryFloor    time.Duration
	dearest       float64 // of the constant costs
	match, exempt caddyhttp.MatcherSets
	page          []piece
	shadow        bool // this zone or all of them
	shared        *sharedZone
	decided       counters
}

// Route is a name for some paths.
type Route struct {
	// The name, which takes the place of the path in keys. Required.
	Name string `json:"name,omitempty"`

	// Paths, as the matcher `path` takes them. Required.
	Path caddyhttp.MatchPath `json:"path,omitempty"`
}

const (
	missingClientIP = "client_ip"
	missingShare    = "share"
	missingSkip     = "skip"
	missingRefuse   = "refuse"

	retryEmpty = "empty"
	retryFit   = "fit"

	refusePage  = "page"
	refuseError = "error"

	otherRoute = "other" // what paths count as that match none
)

var zoneName = regexp.MustCompile(`^[A-Za-z0-9_.-]+$`)

// reference reports whether the zone is nothing but a name.
func (z *Zone) reference() bool {
	definition, err := json.Marshal(z)
	name, err2 := json.Marshal(Zone{Name: z.Name})
	return err == nil && err2 == nil && string(definition) == string(name)
}

// definition returns what two definitions of a zone must have in common.
func (z *Zone) definition() (string, error) {
	raw, err := json.Marshal(z)
	if err != nil {
		return "", err
	}
	// Once more through a map, which forgets order and white space.
	var value map[string]any
	if err := json.Unmarshal(raw, &value); err != nil {
		return "", err
	}
	raw, err = json.Marshal(value)
	return string(raw), err
}
