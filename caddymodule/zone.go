// Package caddymodule is a Caddy handler that protects upstreams with leaky
// buckets.
package caddymodule

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
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

	// How much a bucket holds before it overflows, in units of cost. Required.
	Capacity float64 `json:"capacity,omitempty"`

	// How fast a bucket drains, such as `2/s`, `30/m`, `1000/h` or `5000/d`.
	// Required.
	Leak string `json:"leak,omitempty"`

	// Other limits for some keys. The one that names most parts of the key
	// holds.
	Override []leakybucket.Override `json:"override,omitempty"`

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

	limit         leakybucket.Limit
	table         *leakybucket.Table
	parts         []part
	addresses     []bool
	formKey       bool // a part of the key is in the body
	retryFloor    time.Duration
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

// provision makes a compiled zone ready for requests.
func (z *Zone) provision(ctx caddy.Context) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("zone %q: %w", z.Name, err)
		}
	}()
	if z.match, err = loadMatchers(ctx, z, "Match", z.Match); err != nil {
		return err
	}
	if z.exempt, err = loadMatchers(ctx, z, "Exempt", z.Exempt); err != nil {
		return err
	}
	for i := range z.Cost {
		if err = z.Cost[i].load(ctx); err != nil {
			return err
		}
	}
	for i := range z.Route {
		if err = z.Route[i].Path.Provision(ctx); err != nil {
			return err
		}
	}
	if z.page, err = loadPage(z.Page); err != nil {
		return err
	}
	z.decided = countersOf(z.Name)
	return nil
}

// warn tells of what works, and probably not as it is meant.
func (z *Zone) warn(logger *zap.Logger) {
	logger = logger.With(zap.String("zone", z.Name))
	for _, source := range z.Key {
		if source.Source == "header" && strings.ContainsAny(source.Name, "_.") {
			logger.Warn("Caddy drops headers with _ or . in their names unless they are listed in expected_underscore_headers or expected_dot_headers of the server: this key may always be missing",
				zap.String("header", source.Name))
		}
	}
	for _, limit := range z.table.Limits() {
		for _, cost := range z.constants() {
			if limit.Oversize(cost) {
				logger.Warn("an override holds less than some requests cost: its clients can never make them",
					zap.Float64("capacity", limit.Capacity), zap.Float64("cost", cost))
			}
		}
	}
}

// concerns reports whether the zone is about a request.
func (z *Zone) concerns(r *http.Request) (bool, error) {
	if match, err := z.match.AnyMatchWithError(r); err != nil || !match {
		return false, err
	}
	return isNot(z.exempt, r)
}

// isNot reports whether no set matches; no sets match nothing.
func isNot(sets caddyhttp.MatcherSets, r *http.Request) (bool, error) {
	if len(sets) == 0 {
		return true, nil
	}
	match, err := sets.AnyMatchWithError(r)
	return err == nil && !match, err
}

func (z *Zone) routeOf(r *http.Request) string {
	for i := range z.Route {
		if match, _ := z.Route[i].Path.MatchWithError(r); match {
			return z.Route[i].Name
		}
	}
	return otherRoute
}

// byClient reports whether clients cannot choose the whole key.
func (z *Zone) byClient() bool { return slices.Contains(z.addresses, true) }

// inventable reports whether a client can get any number of buckets by making
// values up.
func (z *Zone) inventable() bool {
	return !z.byClient() && slices.ContainsFunc(z.Key, func(k KeySource) bool {
		return slices.Contains([]string{"header", "cookie", "query", "form"}, k.Source) || sentByClient.MatchString(k.Source)
	})
}

var sentByClient = regexp.MustCompile(`\{http\.request\.(header|cookie|uri\.query)\.`)
