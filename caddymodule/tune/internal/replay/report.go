// Package replay reports what zones decide about the requests of a log: those of a config,
// or those that decided when the log was written. Begin with [Tally].
package replay

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/tune/internal/accesslog"
)

// A Tally counts what zones decide, by their names.
type Tally map[string]*zone

// A zone is what a zone has decided so far.
type zone struct {
	Decided // what is counted as it is shown
	keys    map[string]*key
	hours   map[time.Time]*Hour
	routes  accesslog.Routes // of refusals
}

// A key is what a zone has decided about a key so far.
type key struct {
	Key     // what is counted as it is shown
	assets  int
	agents  accesslog.Agents
	fullest float64 // the highest level, in capacities; 0 if there is no bucket
}

// Add counts what a zone has decided about a request.
func (t Tally) Add(d *accesslog.Outcome, req *accesslog.Request) {
	z := t[d.Zone]
	if z == nil {
		z = &zone{
			Decided: Decided{Name: d.Zone, Decisions: make(map[string]int64), Reasons: make(map[string]int64)},
			keys:    make(map[string]*key), hours: make(map[time.Time]*Hour),
		}
		t[d.Zone] = z
	}
	k := z.keys[d.Key]
	if k == nil {
		k = &key{Key: Key{Key: strings.Clone(d.Key)}}
		z.keys[k.Key.Key] = k
	}
	k.Requests++
	if req.Asset() {
		k.assets++
	}
	k.agents.Add(req)
	if d.Capacity > 0 {
		k.fullest = max(k.fullest, d.Level/d.Capacity)
	}
	z.Requests++
	z.Decisions[d.Decision]++
	z.Unlogged += max(0, d.Unlogged)
	z.LongestDelay = max(z.LongestDelay, d.Waited())
	from := req.At.Truncate(time.Hour)
	h := z.hours[from]
	if h == nil {
		h = &Hour{From: from}
		z.hours[from] = h
	}
	h.Requests++
	if d.Level > z.Peak.Level || z.Peak.At.IsZero() {
		z.Peak = Peak{Level: d.Level, Capacity: d.Capacity, Key: k.Key.Key, At: req.At}
	}
	if !strings.HasSuffix(d.Decision, "refused") { // nor would have been
		return
	}
	h.Refused++
	z.Reasons[d.Reason]++
	z.routes.Add(req.Route())
	if k.Refused++; k.Refused == 1 {
		k.First = req.At
	}
	k.Last = req.At
}

// Decided is what a zone has decided. Refusals of a shadow zone count as refusals.
type Decided struct {
	Name          string           `json:"zone"`
	Requests      int64            `json:"requests"`
	Shadow        bool             `json:"shadow,omitempty"`  // for some keys at least: counted as if all zones of the same throttle were enforced
	Unknown       string           `json:"unknown,omitempty"` // why the log cannot answer for the zone
	Decisions     map[string]int64 `json:"decisions"`         // by admitted, delayed, refused, shadow_delayed, shadow_refused
	Unlogged      int64            `json:"unlogged"`          // refusals that refusal log kept out of the log
	LongestDelay  float64          `json:"longest_delay_seconds"`
	Reasons       map[string]int64 `json:"reasons"` // of refusals
	Keys          int              `json:"keys"`
	RefusedKeys   int              `json:"refused_keys"`
	Peak          Peak             `json:"peak"`
	Fullest       [len(steps)]int  `json:"fullest"` // how many other keys came how near, by quarter of the capacity
	Worst         []Key            `json:"worst_keys"`
	Hours         []Hour           `json:"hours"` // with refusals
	Routes        []Route          `json:"routes"`
	RefusedRoutes int              `json:"refused_routes"` // how many there are in all
}

// steps are how full the buckets became, at most, of keys that were never refused.
var steps = [...]string{"below 25%", "25 to 50%", "50 to 75%", "75% or more"}

// A Peak is the highest level of a bucket after a request.
type Peak struct {
	Level    float64   `json:"level"`
	Capacity float64   `json:"capacity"`
	Key      string    `json:"key"`
	At       time.Time `json:"at"`
}

// An Hour is how many requests there were within one, and how many of them were refused.
type Hour struct {
	From     time.Time `json:"from"`
	Requests int       `json:"requests"`
	Refused  int       `json:"refused"`
}

// A Key is one of those that were refused most.
type Key struct {
	Key      string          `json:"key"`
	Requests int             `json:"requests"`
	Refused  int             `json:"refused"`
	First    time.Time       `json:"first_refused"`
	Last     time.Time       `json:"last_refused"`
	Agents   int             `json:"user_agents"` // different ones, at most 64 are told apart
	Assets   float64         `json:"assets_share"`
	Looks    accesslog.Looks `json:"looks"`
}

// A Route is a path on which requests were refused, without the query.
type Route struct {
	Path    string `json:"path"`
	Refused int64  `json:"refused"`
}

// mostListed is how many keys and routes are listed.
const mostListed = 10

// Zones returns what the zones have decided so far, in the order of their names.
func (t Tally) Zones() []*Decided {
	all := make([]*Decided, 0, len(t))
	for _, name := range slices.Sorted(maps.Keys(t)) {
		all = append(all, t[name].report())
	}
	return all
}

func (z *zone) report() *Decided {
	r := z.Decided
	r.Keys, r.RefusedRoutes = len(z.keys), z.routes.Count()
	r.Worst, r.Hours, r.Routes = []Key{}, []Hour{}, []Route{}
	r.Peak.Level = math.Round(r.Peak.Level*1e6) / 1e6
	for _, k := range z.keys {
		if k.Refused > 0 {
			k.Agents, k.Assets = k.agents.Count(), float64(k.assets)/float64(k.Requests)
			k.Looks = accesslog.LooksLike(k.Requests, k.assets, &k.agents)
			r.Worst = append(r.Worst, k.Key)
		} else if k.fullest > 0 {
			r.Fullest[min(int(k.fullest*float64(len(steps))), len(steps)-1)]++
		}
	}
	r.RefusedKeys = len(r.Worst)
	slices.SortFunc(r.Worst, func(a, b Key) int {
		return cmp.Or(cmp.Compare(b.Refused, a.Refused), cmp.Compare(a.Key, b.Key))
	})
	r.Worst = r.Worst[:min(len(r.Worst), mostListed)]
	for _, from := range slices.SortedFunc(maps.Keys(z.hours), time.Time.Compare) {
		if h := z.hours[from]; h.Refused > 0 {
			r.Hours = append(r.Hours, *h)
		}
	}
	for _, route := range z.routes.Top(mostListed) {
		r.Routes = append(r.Routes, Route{route.Key, int64(route.AtLeast)})
	}
	return &r
}
