package recommend

import (
	"cmp"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/accesslog"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/crawler"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/survey"
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
	PeopleKeys int       `json:"people_keys"` // of clients that loaded static assets

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

	Refused   []RefusedKey `json:"most_refused"`     // by the recommended limit, those most often refused
	Crawlers  []string     `json:"refused_crawlers"` // that refused clients say they are, as verified_crawler names them
	Top       []TopKey     `json:"top_keys"`
	Networks  []Network    `json:"networks"` // that sent most
	Quiet     Network      `json:"quiet"`    // all that look like no people, and are not refused
	Histogram []Bar        `json:"peak_levels"`
	Hours     []Hour       `json:"hours"`
	Caddyfile string       `json:"caddyfile"` // empty if the limit is withheld

	noun string // for a key
	cost string // of each request, as given
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
	Leak            string  `json:"leak"`
	Capacity        float64 `json:"capacity"`
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
	Key      string  `json:"key"`
	Capacity float64 `json:"capacity"`
	Leak     string  `json:"leak"`
	Requests int     `json:"requests"`
	Agents   int     `json:"user_agents"` // at least
}

// A TopKey is one of those that sent most.
type TopKey struct {
	Key      string          `json:"key"`
	Requests int             `json:"requests"`
	Load     float64         `json:"load_share"` // of the whole load, from 0 to 1
	Peak     float64         `json:"peak"`       // the capacity that it needs with the recommended leak
	Refused  int             `json:"refused"`    // by the recommended limit
	Looks    accesslog.Looks `json:"looks"`
}

// A HoldOut is the limit that the first 70% of the log's time gives, and what it would have
// refused in the rest.
type HoldOut struct {
	Leak     string  `json:"leak"`
	Capacity float64 `json:"capacity"`
	People   int     `json:"refused_people"`
	Load     float64 `json:"refused_load_share"` // of the load of the rest, from 0 to 1
	Reason   string  `json:"reason"`             // the same in words
}

// A RefusedKey is one that the recommended limit would have refused.
type RefusedKey struct {
	Key      string          `json:"key"`
	Agent    string          `json:"user_agent"` // of its first request
	Asks     string          `json:"asks"`       // the folder of most of its requests, if there is one
	First    time.Time       `json:"first"`
	Last     time.Time       `json:"last"`
	Requests int             `json:"requests"`
	Refused  int             `json:"refused"`
	Assets   int             `json:"assets"`
	Looks    accesslog.Looks `json:"looks"`
}

// A Bar is how many keys need a capacity of at most Below and more than the bar
// before.
type Bar struct {
	Below  float64 `json:"at_most"`
	Keys   int     `json:"keys"`
	People int     `json:"people"` // of these keys
}

// An Hour is how many requests there were within an hour, and how many of them the
// recommended limit would have refused.
type Hour struct {
	From     time.Time `json:"from"`
	Requests int       `json:"requests"`
	Refused  int       `json:"refused"`
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
func (s *Study) Result(assets int) (*Result, error) {
	if err := s.sort(); err != nil {
		return nil, err
	}
	r := &Result{
		Zone: s.zone, Key: s.options.Key, noun: s.noun(), cost: s.options.Cost, Spare: s.options.Spare,
		From: s.from, To: s.to, Requests: s.units.Requests(), Assets: assets, Keys: s.units.Keys(),
		Overrides: []Override{}, Withheld: []string{}, Notes: []string{}, Refused: []RefusedKey{}, Crawlers: []string{},
	}
	for id := range s.keys {
		if s.person(id) {
			r.PeopleKeys++
		}
	}
	var err error
	floor := 1.0
	if s.zone == "" {
		floor = leastBurst
	}
	if r.Units, err = s.curve(s.units, "request", floor); err != nil {
		return nil, err
	}
	if s.times != nil && s.durationsMeant() {
		seconds, err := s.curve(s.times, "second of work", 1)
		if err != nil {
			return nil, err
		}
		r.Seconds = &seconds
		if r.InFlight, err = s.inFlight(); err != nil {
			return nil, err
		}
	}
	best, err := s.units.Rung(r.Units.Recommended)
	if err != nil {
		return nil, err
	}
	refused, err := s.refusals(r, best)
	if err != nil {
		return nil, err
	}
	s.topKeys(r, best, refused)
	s.refused(r, refused)
	s.histogram(r, best)
	s.networks(r, refused)
	s.overrides(r, best)
	if s.options.Check == "" {
		s.withhold(r)
	}
	if err := s.holdOut(r, floor); err != nil {
		return nil, err
	}
	s.notes(r)
	if len(r.Withheld) == 0 {
		r.Caddyfile = r.lines()
	}
	return r, nil
}

// inFlight returns how many requests were served at once.
func (s *Study) inFlight() (*InFlight, error) {
	most, together, err := s.units.AtOnce()
	f := &InFlight{Slots: 1, All: together}
	var people []int32
	for id, n := range most {
		f.Most = max(f.Most, int(n))
		if n > 0 && s.person(id) {
			people = append(people, n)
		}
	}
	if len(people) > 0 {
		slices.Sort(people)
		f.Slots = int(people[max(0, int(math.Ceil(s.options.Spare/100*float64(len(people))-1e-6))-1)])
	}
	for _, n := range most {
		if int(n) > f.Slots {
			f.RefusedKeys++
		}
	}
	return f, err
}

// refusals counts what the recommended limit refuses, by hour and by key.
func (s *Study) refusals(r *Result, best *survey.Rung) (refused map[int]int, err error) {
	refused = make(map[int]int)
	byHour := make(map[int64]*Hour)
	hour := func(at leakybucket.Instant) *Hour {
		n := int64(at) / 3600e6
		h := byHour[n]
		if h == nil {
			h = &Hour{From: time.Unix(n*3600, 0).UTC()}
			byHour[n] = h
		}
		return h
	}
	err = s.units.Each(func(_ int, at leakybucket.Instant, _ float64) { hour(at).Requests++ })
	if err != nil {
		return nil, err
	}
	_, err = best.Refusals(r.Units.Best().Capacity, func(id int, at leakybucket.Instant, _ float64) {
		hour(at).Refused++
		refused[id]++
	})
	r.Hours = []Hour{}
	for _, h := range byHour {
		r.Hours = append(r.Hours, *h)
	}
	slices.SortFunc(r.Hours, func(a, b Hour) int { return a.From.Compare(b.From) })
	return refused, err
}

// topKeys lists the keys that sent most.
func (s *Study) topKeys(r *Result, best *survey.Rung, refused map[int]int) {
	ids := make([]int, s.units.Keys())
	for i := range ids {
		ids[i] = i
	}
	load := func(id int) float64 { _, load := s.units.Charged(id); return load }
	slices.SortFunc(ids, func(a, b int) int {
		return cmp.Or(cmp.Compare(load(b), load(a)), cmp.Compare(s.units.Name(a), s.units.Name(b)))
	})
	r.Top = []TopKey{}
	for _, id := range ids[:min(len(ids), shownKeys)] {
		requests, load := s.units.Charged(id)
		k := TopKey{Key: s.units.Name(id), Requests: requests, Peak: round(best.Peak(id)), Refused: refused[id], Looks: s.client(id).looks()}
		if r.Units.Load > 0 {
			k.Load = load / r.Units.Load
		}
		r.Top = append(r.Top, k)
	}
}

// round rounds a level for people.
func round(level float64) float64 { return math.Round(level*100) / 100 }

// histogram counts the keys by the capacity that they need with the recommended leak.
// Each bar is twice as wide as the one before.
func (s *Study) histogram(r *Result, best *survey.Rung) {
	bars := make([]Bar, 0, 16)
	for id := range s.units.Keys() {
		peak := best.Peak(id)
		n := 0
		if peak > 1 {
			n = int(math.Ceil(math.Log2(peak) - 1e-9))
		}
		for len(bars) <= n {
			bars = append(bars, Bar{Below: math.Exp2(float64(len(bars)))})
		}
		bars[n].Keys++
		if s.person(id) {
			bars[n].People++
		}
	}
	r.Histogram = bars
}

// mostOverrides is how many override lines are printed.
const mostOverrides = 10

// overrides lists addresses over the limit that look like many people, whose requests follow
// a day and need no more than a few times the limit. Only keys that are one address can have
// them.
func (s *Study) overrides(r *Result, rung *survey.Rung) {
	best := r.Units.Best()
	for id := range s.keys {
		name, client := s.units.Name(id), s.client(id)
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
			Key: name, Capacity: math.Ceil(rung.Peak(id)), Leak: best.Leak, Requests: requests, Agents: int(client.agents.Count()),
		})
	}
	slices.SortFunc(r.Overrides, func(a, b Override) int { return cmp.Or(cmp.Compare(b.Requests, a.Requests), cmp.Compare(a.Key, b.Key)) })
	r.Overrides = r.Overrides[:min(len(r.Overrides), mostOverrides)]
}

// refused lists the keys that are refused most often, and what crawlers they say they are.
func (s *Study) refused(r *Result, refused map[int]int) {
	ids := slices.SortedFunc(maps.Keys(refused), func(a, b int) int {
		return cmp.Or(cmp.Compare(refused[b], refused[a]), cmp.Compare(s.units.Name(a), s.units.Name(b)))
	})
	for i, id := range ids {
		c := s.client(id)
		agent := strings.ToLower(s.clients.texts[c.agent])
		for _, known := range crawler.Known {
			if slices.ContainsFunc(known.Agents, func(name string) bool { return strings.Contains(agent, name) }) && !slices.Contains(r.Crawlers, known.Name) {
				r.Crawlers = append(r.Crawlers, known.Name)
			}
		}
		if i >= shownKeys {
			continue
		}
		requests, _ := s.units.Charged(id)
		r.Refused = append(r.Refused, RefusedKey{
			Key: s.units.Name(id), Agent: s.clients.texts[c.agent], Asks: s.clients.asks(c), First: time.Unix(int64(c.first), 0).UTC(), Last: time.Unix(int64(c.last), 0).UTC(),
			Requests: requests, Refused: refused[id], Assets: int(c.assets), Looks: s.client(id).looks(),
		})
	}
	slices.Sort(r.Crawlers)
}
