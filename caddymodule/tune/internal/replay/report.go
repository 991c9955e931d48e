// Package replay reports what zones decide about the requests of a log: those of a config,
// or those that decided when the log was written. Begin with [Tally].
package replay

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/tune/internal/accesslog"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/tune/internal/clients"
)

// A Tally counts what zones decide, by their names.
type Tally map[string]*zone

// A zone is what a zone has decided so far.
type zone struct {
	Decided // what is counted as it is shown
	keys    map[string]*key
	routes  accesslog.Routes // of refusals
}

// A key is what a zone has decided about a key so far.
type key struct {
	Key                // what is counted as it is shown
	sender  netip.Addr // of its first request
	fullest float64    // the highest level, in capacities; 0 if there is no bucket
}

// Add counts what a zone has decided about a request.
func (t Tally) Add(d *accesslog.Outcome, req *accesslog.Request) {
	z := t[d.Zone]
	if z == nil {
		z = &zone{
			Decided: Decided{Name: d.Zone, Decisions: make(map[string]int64), Reasons: make(map[string]int64)},
			keys:    make(map[string]*key),
		}
		t[d.Zone] = z
	}
	k := z.keys[d.Key]
	if k == nil {
		k = &key{Key: Key{Key: strings.Clone(d.Key)}, sender: req.Client}
		z.keys[k.Key.Key] = k
	}
	k.Asked++
	if d.Capacity > 0 {
		k.fullest = max(k.fullest, d.Level/d.Capacity)
	}
	z.Requests++
	z.Decisions[d.Decision]++
	z.Unlogged += max(0, d.Unlogged)
	z.LongestDelay = max(z.LongestDelay, d.Waited())
	if !strings.HasSuffix(d.Decision, "refused") { // nor would have been
		return
	}
	z.Reasons[d.Reason]++
	z.routes.Add(req.Route())
	if k.Refused++; k.Refused == 1 {
		k.FirstOver = req.At
	}
	k.LastOver = req.At
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
	RefusedPeople int              `json:"refused_people"` // keys of clients that look like people
	Fullest       [len(steps)]int  `json:"fullest"`        // how many other keys came how near, by quarter of the capacity
	Worst         []Key            `json:"worst_keys"`
	Routes        []Route          `json:"routes"`
	RefusedRoutes int              `json:"refused_routes"` // how many there are in all
}

// steps are how full the buckets became, at most, of keys that were never refused.
var steps = [...]string{"below 25%", "25 to 50%", "50 to 75%", "75% or more"}

// A Key is one of those that were refused most, and the client that sent the first of its requests.
type Key struct {
	Key       string    `json:"key"`
	Asked     int       `json:"asked"`   // requests
	Refused   int       `json:"refused"` // of these
	FirstOver time.Time `json:"first_refused"`
	LastOver  time.Time `json:"last_refused"`
	clients.Sender
}

// A Route is a path on which requests were refused, without the query.
type Route struct {
	Path    string `json:"path"`
	Refused int64  `json:"refused"`
}

// mostListed is how many keys and routes are listed.
const mostListed = 10

// Zones returns what the zones have decided so far, in the order of their names. by returns the
// clients of the log as a zone tells them apart.
func (t Tally) Zones(by func(zone string) *clients.Table) []*Decided {
	all := make([]*Decided, 0, len(t))
	for _, name := range slices.Sorted(maps.Keys(t)) {
		all = append(all, t[name].report(by(name)))
	}
	return all
}

func (z *zone) report(known *clients.Table) *Decided {
	r := z.Decided
	r.Keys, r.RefusedRoutes = len(z.keys), z.routes.Count()
	r.Worst, r.Routes = []Key{}, []Route{}
	for _, k := range z.keys {
		if k.Refused > 0 {
			c := known.Of(k.sender)
			k.Sender = c.Sender()
			if r.Worst = append(r.Worst, k.Key); c.Person() {
				r.RefusedPeople++
			}
		} else if k.fullest > 0 {
			r.Fullest[min(int(k.fullest*float64(len(steps))), len(steps)-1)]++
		}
	}
	r.RefusedKeys = len(r.Worst)
	slices.SortFunc(r.Worst, func(a, b Key) int {
		return cmp.Or(cmp.Compare(b.Refused, a.Refused), cmp.Compare(a.Key, b.Key))
	})
	r.Worst = r.Worst[:min(len(r.Worst), mostListed)]
	for _, route := range z.routes.Top(mostListed) {
		r.Routes = append(r.Routes, Route{route.Key, int64(route.AtLeast)})
	}
	return &r
}
