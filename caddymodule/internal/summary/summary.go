// Package summary counts what throttle itself decided, from the field throttle of
// Caddy's access log.
package summary

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/accesslog"
)

const (
	// mostKeys is how many keys of each zone are remembered. Others are only counted
	// in the totals.
	mostKeys = 1_000_000

	// shown is how many keys and routes a summary names.
	shown = 10
)

// A Summary collects the decisions of all zones. The zero Summary is empty.
type Summary struct {
	Requests int       // lines that were read
	Decided  int       // of these, requests that a zone was asked about
	Broken   int       // of these, lines whose field throttle could not be read
	From, To time.Time // the first and the last arrival

	zones map[string]*zone
}

type zone struct {
	decisions map[string]int
	reasons   map[string]map[string]int // by decision
	keys      map[string]*keyTally
	unlogged  int
	unknown   int // requests of keys beyond mostKeys
	routes    accesslog.Routes
	hours     map[int64]int // refusals, by hours since 1970
}

type keyTally struct {
	requests, refused int
	nearest           float64 // the highest level, in capacities; negative if the zone has no buckets
	first, last       time.Time
}

// A decided is the field of one zone, or of the decisive one with all of them.
type decided struct {
	Zone     string
	Decision string
	Reason   string
	Key      string
	Level    float64
	Capacity float64
	Unlogged int
	Zones    []decided
}

// Add counts a request.
func (s *Summary) Add(r *accesslog.Request) {
	if s.Requests == 0 {
		s.From = r.At
	}
	s.Requests++
	s.To = r.At
	if r.Throttle == "" {
		return
	}
	var field decided
	if err := json.Unmarshal([]byte(r.Throttle), &field); err != nil {
		s.Broken++
		return
	}
	asked := field.Zones
	if len(asked) == 0 {
		asked = []decided{field}
	}
	named := false
	for i := range asked {
		if asked[i].Zone != "" && asked[i].Decision != "" {
			s.zone(asked[i].Zone).add(&asked[i], r)
			named = true
		}
	}
	if named {
		s.Decided++
	}
}

func (s *Summary) zone(name string) *zone {
	if s.zones == nil {
		s.zones = make(map[string]*zone)
	}
	z := s.zones[name]
	if z == nil {
		z = &zone{
			decisions: make(map[string]int), reasons: make(map[string]map[string]int), keys: make(map[string]*keyTally),
			hours: make(map[int64]int),
		}
		s.zones[strings.Clone(name)] = z
	}
	return z
}

func (z *zone) add(d *decided, r *accesslog.Request) {
	refused := strings.HasSuffix(d.Decision, "refused")
	z.decisions[d.Decision]++
	z.unlogged += max(0, d.Unlogged)
	if refused {
		if z.reasons[d.Decision] == nil {
			z.reasons[d.Decision] = make(map[string]int)
		}
		z.reasons[d.Decision][d.Reason]++
		z.hours[r.At.Unix()/3600]++
		z.routes.Add(r.Method + " " + r.Route())
	}
	k := z.keys[d.Key]
	if k == nil {
		if len(z.keys) >= mostKeys {
			z.unknown++
			return
		}
		k = &keyTally{nearest: -1}
		z.keys[d.Key] = k
	}
	k.requests++
	if d.Capacity > 0 {
		k.nearest = max(k.nearest, d.Level/d.Capacity)
	}
	if refused {
		if k.refused == 0 {
			k.first = r.At
		}
		k.refused++
		k.last = r.At
	}
}

// A Zone is the summary of one zone. Its JSON is that of `caddy throttle summary
// --json`.
type Zone struct {
	Zone      string                    `json:"zone"`
	Requests  int                       `json:"requests"`  // that the zone was asked about
	Decisions map[string]int            `json:"decisions"` // by admitted, delayed, refused, shadow_refused, shadow_delayed
	Reasons   map[string]map[string]int `json:"reasons"`   // of refusals, by decision
	Unlogged  int                       `json:"unlogged"`  // refusals that refusal log kept out of the logs

	Keys        int   `json:"keys"`         // distinct keys
	RefusedKeys int   `json:"refused_keys"` // of these, refused at least once
	Unknown     int   `json:"requests_of_keys_not_counted"`
	Nearest     Near  `json:"nearest"` // how near the others came
	Top         []Key `json:"top_keys"`

	Routes []Count `json:"top_routes"` // of refusals
	Hours  []Hour  `json:"refusals_by_hour"`
}

// Near says how full the buckets of keys that were never refused became, at most: how
// many keys stayed below 25%, 50%, 75% and 90% of the capacity, and how many went
// above that.
type Near struct {
	Below25 int `json:"below_25_percent"`
	Below50 int `json:"below_50_percent"`
	Below75 int `json:"below_75_percent"`
	Below90 int `json:"below_90_percent"`
	Above   int `json:"90_percent_or_more"`
}

// A Key is one that was refused, with its first and last refusal.
type Key struct {
	Key      string    `json:"key"`
	Requests int       `json:"requests"`
	Refused  int       `json:"refused"`
	First    time.Time `json:"first"`
	Last     time.Time `json:"last"`
}

// A Count is how often something came, at least.
type Count struct {
	Name  string `json:"name"`
	Count int    `json:"count"`
}

// An Hour is how many refusals there were within an hour.
type Hour struct {
	From  time.Time `json:"from"`
	Count int       `json:"count"`
}

// Zones returns the summaries, by the names of the zones.
func (s *Summary) Zones() []Zone {
	zones := make([]Zone, 0, len(s.zones))
	for _, name := range slices.Sorted(maps.Keys(s.zones)) {
		zones = append(zones, s.zones[name].summary(name))
	}
	return zones
}

func (z *zone) summary(name string) Zone {
	r := Zone{Zone: name, Decisions: z.decisions, Reasons: z.reasons, Unlogged: z.unlogged, Keys: len(z.keys), Unknown: z.unknown, Top: []Key{}, Routes: []Count{}, Hours: []Hour{}}
	for _, n := range z.decisions {
		r.Requests += n
	}
	for key, k := range z.keys {
		if k.refused > 0 {
			r.RefusedKeys++
			r.Top = append(r.Top, Key{key, k.requests, k.refused, k.first, k.last})
			continue
		}
		switch near := &r.Nearest; {
		case k.nearest < 0:
		case k.nearest < 0.25:
			near.Below25++
		case k.nearest < 0.5:
			near.Below50++
		case k.nearest < 0.75:
			near.Below75++
		case k.nearest < 0.9:
			near.Below90++
		default:
			near.Above++
		}
	}
	slices.SortFunc(r.Top, func(a, b Key) int {
		return cmp.Or(cmp.Compare(b.Refused, a.Refused), strings.Compare(a.Key, b.Key))
	})
	r.Top = r.Top[:min(len(r.Top), shown)]
	for _, route := range z.routes.Top(shown) {
		r.Routes = append(r.Routes, Count{route.Key, route.AtLeast})
	}
	for _, hour := range slices.Sorted(maps.Keys(z.hours)) {
		r.Hours = append(r.Hours, Hour{time.Unix(hour*3600, 0).UTC(), z.hours[hour]})
	}
	return r
}

// A Report is what was counted. Its JSON is part of that of `caddy throttle summary
// --json`.
type Report struct {
	Decided int    `json:"decided"`       // requests that a zone was asked about
	Broken  int    `json:"broken_fields"` // lines whose field throttle could not be read
	Zones   []Zone `json:"zones"`
}

// Report returns what was counted so far.
func (s *Summary) Report() *Report { return &Report{s.Decided, s.Broken, s.Zones()} }
