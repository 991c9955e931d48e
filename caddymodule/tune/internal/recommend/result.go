package recommend

import (
	"cmp"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/tune/internal/accesslog"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/tune/internal/survey"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// A Result is what a study found. Its JSON is one zone of `caddy throttle recommend
// --json`.
type Result struct {
	Zone  string  `json:"zone,omitempty"` // empty without --config
	Key   string  `json:"key"`            // the sources of the key
	Spare float64 `json:"spare_percent"`  // of the people

	From       time.Time `json:"from"`
	To         time.Time `json:"to"`
	Requests   int       `json:"requests"` // that were charged
	Assets     int       `json:"assets"`   // requests for static assets, which were not
	Keys       int       `json:"keys"`
	PeopleKeys int       `json:"people_keys"`   // of clients that look like people
	Unclear    float64   `json:"unclear_share"` // of the keys: they name no robot, and loaded too few assets for people

	Units   Curve  `json:"limit"`
	Seconds *Curve `json:"settle_seconds,omitempty"` // the same in seconds of work; needs durations

	// HoldOut is nil if the limit is withheld for another reason.
	HoldOut *HoldOut `json:"hold_out,omitempty"`

	// InFlight is the least in_flight that spares the share of the keys. It needs
	// durations.
	InFlight *InFlight `json:"in_flight,omitempty"`

	Overrides []Override `json:"overrides"`
	Withheld  []string   `json:"withheld"` // why no limit is recommended; then there is no Caddyfile
	Notes     []string   `json:"notes"`    // what the figures leave out

	Refused   []Key     `json:"most_refused"`     // by the recommended limit, those most often refused
	Crawlers  []string  `json:"refused_crawlers"` // that refused clients say they are, as verified_crawler names them
	Top       []Key     `json:"top_keys"`         // that sent most
	Networks  []Network `json:"networks"`         // that sent most
	Quiet     Network   `json:"quiet"`            // all that look like no people, and are not refused
	Caddyfile string    `json:"caddyfile"`        // empty if the limit is withheld

	cost    string // of each request, as given
	checked bool   // the last limit is one to check
}

// A Curve is what the limits of a ladder would have done.
type Curve struct {
	Load        float64 `json:"load"` // all costs, in units
	Points      []Point `json:"points"`
	Recommended int     `json:"recommended"` // index into the points
	Reason      string  `json:"reason"`
}

// A Point is one limit.
type Point struct {
	Limit
	RefillSeconds   float64 `json:"refill_seconds"` // after which a client has its whole burst again
	RefusedKeys     int     `json:"refused_keys"`
	RefusedPeople   int     `json:"refused_people"` // keys of clients that loaded static assets
	RefusedRequests int     `json:"refused_requests"`
	RefusedLoad     float64 `json:"refused_load_share"` // of the whole load, from 0 to 1
}

// Best returns the point that is recommended.
func (c *Curve) Best() Point { return c.Points[c.Recommended] }

// InFlight says how many requests were served at once.
type InFlight struct {
	Slots       int `json:"slots"` // that spare the share of the keys
	Most        int `json:"most"`  // of any key
	All         int `json:"all"`   // of all keys together
	RefusedKeys int `json:"refused_keys"`
}

// An Override is a limit for an address that looks like many people.
type Override struct {
	Key string `json:"key"`
	Limit
	Requests int `json:"requests"`
	Agents   int `json:"user_agents"` // at least
}

// A HoldOut is the limit that the first 70% of the log's time gives, and what it would have
// refused in the rest.
type HoldOut struct {
	Limit
	People int     `json:"refused_people"`
	Load   float64 `json:"refused_load_share"` // of the load of the rest, from 0 to 1
	Reason string  `json:"reason"`             // the same in words
}

// A Key is one that sent most, or is refused most often.
type Key struct {
	Key      string          `json:"key"`
	Agent    string          `json:"user_agent"`      // of its first request
	Agents   int             `json:"user_agents"`     // how many there are, at least
	Claims   []string        `json:"claims_crawlers"` // that they name, as verified_crawler does
	Asks     string          `json:"asks"`            // the folder of most of its requests, if there is one
	First    time.Time       `json:"first"`
	Last     time.Time       `json:"last"`
	Requests int             `json:"requests"`
	Refused  int             `json:"refused"` // by the recommended limit
	Assets   int             `json:"assets"`
	Load     float64         `json:"load_share"` // of the whole load, from 0 to 1
	Peak     float64         `json:"peak"`       // the capacity that it needs with the recommended leak
	Looks    accesslog.Looks `json:"looks"`
}

const (
	shownKeys = 10

	// forgives is how long a client may have to wait for its whole burst again with a
	// limit that is recommended.
	forgives = 10 * time.Minute

	// nearlyAll is how much of what the best limit removes a gentler one must remove.
	nearlyAll = 0.95

	// leastBurst is the least burst of a limit for pages that is recommended.
	leastBurst = 20

	// Nothing is recommended where a limit would remove less than leastRemoved of the load,
	// or one key sends more than mostOfOne, or so many requests have no address; nor from a
	// log of fewer than leastRequests or less than leastSpan.
	leastRemoved  = 0.03
	mostOfOne     = 0.5
	leastRequests = 1000
	leastSpan     = 24 * time.Hour

	// mostTimes is how many times the limit an override may be.
	mostTimes = 5
)

// Result computes what to recommend. Assets is how many requests were left out because
// they were for static assets.
func (s *Study) Result(assets int) *Result {
	s.end()
	r := &Result{
		Zone: s.zone, Key: s.options.Key, cost: s.options.Cost, checked: s.options.Check.Leak != "", Spare: s.options.Spare,
		From: s.from, To: s.to, Requests: s.units.Requests, Assets: assets, Keys: s.units.Keys,
		Overrides: []Override{}, Withheld: []string{}, Notes: []string{},
	}
	for id, c := range s.keys {
		if s.person(id) {
			r.PeopleKeys++
		} else if c.addr.IsValid() && !c.agents.Robots() {
			r.Unclear++
		}
	}
	r.Unclear /= float64(max(1, r.Keys))
	floor := 1.0
	if s.zone == "" {
		floor = leastBurst
	}
	r.Units = s.curve(s.units, "request", floor)
	if s.times != nil && s.durationsMeant() {
		seconds := s.curve(s.times, "worker-second", 1)
		r.Seconds, r.InFlight = &seconds, s.inFlight()
	}
	best := s.units.Rung(r.Units.Recommended)
	refused := make(map[int]int)
	best.Refusals(r.Units.Best().Capacity, func(id int, _ leakybucket.Instant, _ float64) { refused[id]++ })
	r.Top = s.first(r, best, refused, func(id int) float64 { _, load := s.units.Charged(id); return load })
	r.Refused = s.first(r, best, refused, func(id int) float64 { return float64(cmp.Or(refused[id], -1)) })
	claims := uint32(0)
	for id := range refused {
		claims |= s.keys[id].crawlers
	}
	r.Crawlers = namesOf(claims)
	s.networks(r, refused)
	s.overrides(r, best)
	if !r.checked {
		s.withhold(r)
	}
	s.holdOut(r, floor)
	s.notes(r)
	if len(r.Withheld) == 0 {
		r.Caddyfile = r.lines()
	}
	return r
}

// inFlight returns how many requests were served at once.
func (s *Study) inFlight() *InFlight {
	most, together := s.units.AtOnce()
	f := &InFlight{Slots: 1, All: together}
	var people []int
	for id, n := range most {
		f.Most = max(f.Most, n)
		if n > 0 && s.person(id) {
			people = append(people, n)
		}
	}
	if len(people) > 0 {
		slices.Sort(people)
		f.Slots = people[max(0, int(math.Ceil(s.options.Spare/100*float64(len(people))-1e-6))-1)]
	}
	for _, n := range most {
		if n > f.Slots {
			f.RefusedKeys++
		}
	}
	return f
}

// first lists the keys that have most of something. It leaves those out that have less than
// nothing.
func (s *Study) first(r *Result, best *survey.Rung, refused map[int]int, of func(id int) float64) []Key {
	var ids []int
	for id := range s.keys {
		if of(id) >= 0 {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b int) int {
		return cmp.Or(cmp.Compare(of(b), of(a)), cmp.Compare(s.units.Name(a), s.units.Name(b)))
	})
	keys := []Key{}
	for _, id := range ids[:min(len(ids), shownKeys)] {
		requests, load := s.units.Charged(id)
		c := s.keys[id]
		keys = append(keys, Key{
			Key: s.units.Name(id), Agent: c.agent.Value(), Agents: c.agents.Count(), Claims: namesOf(c.crawlers), Asks: c.asks(), First: time.Unix(int64(c.first), 0).UTC(), Last: time.Unix(int64(c.last), 0).UTC(),
			Requests: requests, Refused: refused[id], Assets: int(c.assets), Load: load / cmp.Or(r.Units.Load, 1), Peak: round(best.Peak(id)), Looks: c.looks(),
		})
	}
	return keys
}

// round rounds a level for people.
func round(level float64) float64 { return math.Round(level*100) / 100 }

// mostOverrides is how many override lines are printed.
const mostOverrides = 10

// overrides lists addresses over the limit that look like many people, whose requests follow
// a day and need no more than a few times the limit. Only keys that are one address can have
// them.
func (s *Study) overrides(r *Result, rung *survey.Rung) {
	best := r.Units.Best()
	for id, client := range s.keys {
		name := s.units.Name(id)
		if !rung.Refused(id, best.Capacity) || client.looks() != accesslog.Many {
			continue
		}
		if rung.Peak(id) > mostTimes*best.Capacity || !client.daily() {
			continue
		}
		if addr, err := netip.ParseAddr(name); err != nil || Person(addr) != client.addr {
			continue
		}
		requests, _ := s.units.Charged(id)
		r.Overrides = append(r.Overrides, Override{
			Key: name, Limit: Limit{best.Leak, math.Ceil(rung.Peak(id))}, Requests: requests, Agents: client.agents.Count(),
		})
	}
	slices.SortFunc(r.Overrides, func(a, b Override) int { return cmp.Or(cmp.Compare(b.Requests, a.Requests), cmp.Compare(a.Key, b.Key)) })
	r.Overrides = r.Overrides[:min(len(r.Overrides), mostOverrides)]
}
