// Package config is the JSON of the modules, its manual and its defaults: the global options in
// [App], and concurrency limits in [InFlight]. Begin with these; zones are in package limit.
package config

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/option"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// App is the JSON of the global options: the store for buckets, zones that several
// sites use by name, and options for all zones.
type App struct {
	// Where buckets are kept: `memory`, or a shared store such as `redis` or
	// `postgres` that this Caddy was built with. Default: `memory`. In memory, each
	// Caddy behind a load balancer has limits of its own.
	StoreRaw json.RawMessage `json:"store,omitempty" caddy:"namespace=throttle.stores inline_key=module"`

	// The timeout of each call of a store that is not in memory, of which a request makes
	// a few. Default: 50ms. Too short, and a healthy store counts as down.
	StoreTimeout caddy.Duration `json:"store_timeout,omitempty"`

	// The fallback when a shared store does not answer: `local` uses buckets in
	// this process, `allow` lets requests pass, `deny` refuses them with status
	// 503. Zones may override it. Default: `local`.
	OnStoreError string `json:"on_store_error,omitempty"`

	// The number of Caddys that share the store. When it does not answer, each
	// enforces its share of every limit. Default: 1. Too low, and clients have more
	// than the limit in an outage.
	Nodes int `json:"nodes,omitempty"`

	// The secret that signs device cookies and passes, of at least 32 bytes. Write it as
	// `{file./path}` or `{env.NAME}`. Caddys with the same one accept each other's.
	// Default: keys in Caddy's storage, for Caddys that share it. Another secret revokes
	// all cookies.
	SigningKey string `json:"signing_key,omitempty"`

	// How much this process keeps of request bodies, and of responses that clients have not read
	// yet. Default: 64 MiB for one body, and 1 GiB in all. Too little, and uploads are refused.
	Buffer *Buffer `json:"buffer,omitempty"`

	// Requests that no zone ever charges, and that need no slot of in_flight. Default: none.
	Exempt caddyhttp.RawMatcherSets `json:"exempt,omitempty" caddy:"namespace=http.matchers"`

	// Static files that no zone ever charges, and that need no slot. Default: none.
	ExemptStaticFiles []option.StaticFiles `json:"exempt_static_files,omitempty"`

	// Named limits for overrides: a capacity and a leak, such as `100 10/s`.
	// Default: none.
	Plan map[string]string `json:"plan,omitempty"`

	// Zones that handlers use by name, and that share their buckets on all sites. Default: none.
	Zone []*limit.Zone `json:"zone,omitempty"`

	// Concurrency limits that handlers use by name, and that share their slots. Default: none.
	InFlight []*InFlight `json:"in_flight,omitempty"`

	// Dry run: make every zone and every in_flight decide, count and log, and never
	// refuse. Default: only those with `shadow` do.
	Shadow bool `json:"shadow,omitempty"`
}

const mostNodes = 1000

// Check refuses what options may not be, but for plans and zones. Zero means the default.
func (a *App) Check() error {
	_, _, wrongBuffer := a.Buffer.Bytes()
	return cmp.Or(
		option.About("buffer", 0, wrongBuffer),
		option.CheckFree("exempt", a.Exempt),
		option.Among("on_store_error", a.OnStoreError, option.StorePolicies...),
		option.Within("store_timeout", time.Duration(a.StoreTimeout), 0, option.Longest),
		option.Within("nodes", a.Nodes, 0, mostNodes),
	)
}

// Handler is the JSON of a handler.
type Handler struct {
	// The zones that are charged together. Required. If one of them refuses a request, none is
	// charged.
	Zone []*limit.Zone `json:"zone,omitempty"`

	// Which requests the zones apply to, on top of their own match. Default: all. In a
	// Caddyfile, this is the matcher of the directive.
	Match caddyhttp.RawMatcherSets `json:"match,omitempty" caddy:"namespace=http.matchers"`

	// Send the rate-limit headers RateLimit-Policy and RateLimit: the capacity of
	// the enforced zone that is nearest exhaustion, and how much of it is left.
	// Zones keyed by a form field or a cookie do not count, because they would tell
	// which accounts exist. Answers to GET and HEAD have them only with Cache-Control:
	// private or no-store. Default: no such headers.
	RateLimitHeaders bool `json:"ratelimit_headers,omitempty"`
}

// ParsePlans parses the named limits.
func ParsePlans(plans map[string]string) (map[string]leakybucket.Limit, error) {
	limits := make(map[string]leakybucket.Limit)
	for name, text := range plans {
		limit, err := leakybucket.ParseLimit(text)
		err = cmp.Or(
			option.Refuse("", name == "unlimited" || name == "deny" || name == "as", "invalid plan name %q: the word has a meaning of its own in overrides", name),
			option.CheckName("plan", name),
			option.Refuse("", err != nil, "plan %q: %w", name, err),
		)
		if err != nil {
			return nil, err
		}
		limits[name] = limit
	}
	return limits, nil
}

// Names are the definitions of a config by name. Zones and in_flight are one name space: metrics and
// commands could not tell them apart.
type Names map[string]Definition

// A Definition is that of a zone or an in_flight.
type Definition struct {
	Kind   string // zone or in_flight
	Text   string // canonical
	Place  string // where it is; empty in JSON
	Global bool   // in the global options
}

// Add adds a definition. Several of one name must be equal.
func (all Names) Add(name string, d Definition) error {
	other, before := all[name]
	if !before {
		all[name] = d
	}
	var places string
	if d.Place != "" {
		places = fmt.Sprintf(", %s and %s", other.Place, d.Place)
	}
	return cmp.Or(
		option.Refuse("", before && other.Kind != d.Kind, "%q is the name of a zone and of an in_flight: give one of them another name%s", name, places),
		option.Refuse("", before && other.Text != d.Text, "%s %q is defined twice, and differently (%s): a name is one budget, so give one of them another name%s", d.Kind, name, d.differs(other), places),
	)
}

// differs names the options that differ. Their values may be secret, as are keys in override.
func (d Definition) differs(other Definition) string {
	var one, two map[string]json.RawMessage
	_, _ = json.Unmarshal([]byte(d.Text), &one), json.Unmarshal([]byte(other.Text), &two)
	maps.DeleteFunc(one, func(option string, value json.RawMessage) bool {
		same := string(value) == string(two[option])
		delete(two, option)
		return same
	})
	maps.Copy(one, two)
	return strings.Join(slices.Sorted(maps.Keys(one)), ", ")
}

// CheckMeant refuses a name that stands alone, and which the global options don't define.
func (all Names) CheckMeant(kind, name string) error {
	if d := all[name]; d.Global && d.Kind == kind {
		return nil
	}
	var known []string
	for other, d := range all {
		if d.Global && d.Kind == kind {
			known = append(known, other)
		}
	}
	slices.Sort(known)
	if meant := option.Nearest(name, known); meant != "" {
		return fmt.Errorf("unknown %s %q: did you mean %s?", kind, name, meant)
	}
	return fmt.Errorf("unknown %s %q: none of that name is defined in the global options; define it there, or here, after its name", kind, name)
}

// Duplicates are the names of one handler's zones by the rest of their definitions.
type Duplicates map[string]string

// Add refuses a zone that is an earlier one, or differs from it only in its name, because it
// would charge each request twice. The definition is the zone's JSON.
func (d Duplicates) Add(name, definition string) error {
	nameless := option.Canonical([]byte(definition), "name")
	other, found := d[nameless]
	d[nameless] = name
	return cmp.Or(
		option.Refuse("", other == name, "zone %q is given twice in one handler", name),
		option.Refuse("", found, "zones %q and %q of one throttle directive are the same but for their names, and would refuse the same requests: remove one", other, name),
	)
}

// Memory is the JSON of the memory store: it keeps the buckets in the memory of this process. They survive reloads. A
// snapshot on disk lets them survive restarts, too.
type Memory struct {
	// How many buckets are kept at most. Default: 500000, at some 100 bytes each.
	// When they are all in use, the one that would be empty soonest is dropped, and its
	// key starts with an empty bucket. A reload changes the number; to raise it more than
	// tenfold, restart.
	MaxBuckets int `json:"max_buckets,omitempty"`

	// The file in which buckets survive a restart, or `off`. It is read when Caddy
	// starts, and holds the addresses and digests of keys. Default:
	// `throttle/buckets.snapshot` in Caddy's data folder. With `off`, a restart empties
	// all buckets and ends all blocks.
	Snapshot string `json:"snapshot,omitempty"`

	// How often the snapshot is written, if a bucket has changed. It is also written
	// when Caddy ends. Default: 30s; at most 24h. After a crash or a `kill -9`, what happened since
	// the last snapshot is forgotten.
	SnapshotInterval caddy.Duration `json:"snapshot_interval,omitempty"`
}

// MostBuckets is the most that max_buckets may be.
const MostBuckets = 100_000_000

const leastSnapshotInterval = 100 * time.Millisecond

// Check refuses what the options may not be. Zero means the default.
func (m *Memory) Check() error {
	interval := cmp.Or(time.Duration(m.SnapshotInterval), leastSnapshotInterval)
	return cmp.Or(option.Within("max_buckets", m.MaxBuckets, 0, MostBuckets), option.Within("snapshot_interval", interval, leastSnapshotInterval, option.Longest))
}
