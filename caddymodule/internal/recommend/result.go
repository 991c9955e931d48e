package recommend

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/accesslog"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/survey"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// A Result is what a study found. Its JSON is one zone of `caddy throttle recommend
// --json`.
type Result struct {
	Zone   string  `json:"zone,omitempty"` // empty without --config
	Key    string  `json:"key"`            // the sources of the key
	Spare  float64 `json:"spare_percent"`
	People bool    `json:"people"` // the share is one of the people

	From       time.Time `json:"from"`
	To         time.Time `json:"to"`
	Requests   int       `json:"requests"` // that were charged
	Assets     int       `json:"assets"`   // requests for static assets, which were not
	Keys       int       `json:"keys"`
	PeopleKeys int       `json:"people_keys"` // of clients that loaded static assets

	Units   Curve  `json:"limit"`
	Seconds *Curve `json:"settle_seconds,omitempty"` // the same in seconds of work; needs durations

	// InFlight is the least in_flight that spares the share of the keys. It needs
	// durations.
	InFlight *InFlight `json:"in_flight,omitempty"`

	Overrides []Override `json:"overrides"`
	Notes     []string   `json:"notes"` // why the data may be too thin to tell, and what is left out

	Top       []TopKey `json:"top_keys"`
	Histogram []Bar    `json:"peak_levels"`
	Hours     []Hour   `json:"hours"`
	Caddyfile string   `json:"caddyfile"`

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

// A Bar is how many keys need a capacity of at most Below and more than the bar
// before.
type Bar struct {
	Below float64 `json:"at_most"`
	Keys  int     `json:"keys"`
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

	// smallBurst is up to which capacity a recommendation says that it is small.
	smallBurst = 3

	// nearlyAll is how much of what the best limit removes a gentler one must remove.
	nearlyAll = 0.95
)

// Result computes what to recommend. Assets is how many requests were left out because
// they were for static assets.
func (s *Study) Result(assets int) (*Result, error) {
	r := &Result{
		Zone: s.zone, Key: s.options.Key, noun: s.noun(), cost: s.options.Cost, Spare: s.options.Spare, People: s.options.People,
		From: s.from, To: s.to, Requests: s.units.Requests(), Assets: assets, Keys: s.units.Keys(),
		Overrides: []Override{}, Notes: []string{},
	}
	for id := range s.keys {
		if s.person(id) {
			r.PeopleKeys++
		}
	}
	var err error
	if r.Units, err = s.curve(s.units, "request"); err != nil {
		return nil, err
	}
	if s.times != nil {
		seconds, err := s.curve(s.times, "second of work")
		if err != nil {
			return nil, err
		}
		r.Seconds, r.InFlight = &seconds, s.inFlight()
	}
	refused, err := s.refusals(r)
	if err != nil {
		return nil, err
	}
	s.topKeys(r, refused)
	s.histogram(r)
	s.overrides(r)
	s.notes(r)
	r.Caddyfile = r.lines()
	return r, nil
}

// person reports whether the key is one of a client that loads static assets.
func (s *Study) person(id int) bool { return s.clients.loads(s.keys[id]) }

// curve returns the curve of a survey, with the recommended limit.
func (s *Study) curve(in *survey.Survey, unit string) (Curve, error) {
	// The survey in seconds has fewer keys if some lines have no duration.
	keyOf := func(id int) int {
		if in == s.units {
			return id
		}
		of, _ := s.units.ID(in.Name(id))
		return of
	}
	counts := func(id int) bool { return s.person(keyOf(id)) }
	spared := counts
	if !s.options.People {
		spared = nil
	}
	points, err := in.Curve(s.options.Spare/100, spared)
	if err != nil {
		return Curve{}, err
	}
	c := Curve{Load: in.Load()}
	for i, p := range points {
		point := Point{
			Leak: ladder[i], Capacity: p.Capacity, RefillSeconds: p.TimeToEmpty(p.Capacity).Seconds(),
			RefusedKeys: p.RefusedKeys, RefusedRequests: p.RefusedRequests,
		}
		if c.Load > 0 {
			point.RefusedLoad = p.RefusedLoad / c.Load
		}
		for id := range in.Keys() {
			if counts(id) && in.Refused(id, i, p.Capacity) {
				point.RefusedPeople++
			}
		}
		c.Points = append(c.Points, point)
	}
	c.Recommended = choose(c.Points)
	c.Reason = c.reason(in.Keys(), in.Requests(), unit, s.noun())
	return c, nil
}

// choose returns the index of the limit to recommend. All of them spare the same
// share of the clients. Of those that give a client its whole burst back within ten
// minutes, and remove nearly as much of the load as the best of these, it is the one
// with the largest burst: people come in bursts, and the log has not seen them all.
func choose(points []Point) int {
	best := 0.0
	for _, p := range points {
		if p.RefillSeconds <= forgives.Seconds() {
			best = max(best, p.RefusedLoad)
		}
	}
	chosen := -1
	for i, p := range points {
		if p.RefillSeconds > forgives.Seconds() || p.RefusedLoad < nearlyAll*best {
			continue
		}
		if chosen < 0 || p.Capacity > points[chosen].Capacity {
			chosen = i
		}
	}
	if chosen >= 0 {
		return chosen
	}
	return len(points) - 1 // it forgives soonest
}

// inFlight returns how many requests were served at once.
func (s *Study) inFlight() *InFlight {
	var all []int
	f := &InFlight{All: int(s.all.most)}
	for id := range s.busy {
		n := int(s.busy[id].most)
		if n == 0 {
			continue
		}
		f.Most = max(f.Most, n)
		if s.options.People && !s.person(id) {
			continue
		}
		all = append(all, n)
	}
	f.Slots = 1
	if len(all) > 0 {
		slices.Sort(all)
		f.Slots = all[max(0, int(math.Ceil(s.options.Spare/100*float64(len(all))-1e-6))-1)]
	}
	for id := range s.busy {
		if int(s.busy[id].most) > f.Slots {
			f.RefusedKeys++
		}
	}
	return f
}

// refusals counts what the recommended limit refuses, by hour and by key.
func (s *Study) refusals(r *Result) (refused map[int]int, err error) {
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
	err = s.units.Refusals(r.Units.Recommended, r.Units.Best().Capacity, func(id int, at leakybucket.Instant, _ float64) {
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
func (s *Study) topKeys(r *Result, refused map[int]int) {
	ids := make([]int, s.units.Keys())
	for i := range ids {
		ids[i] = i
	}
	load := func(id int) float64 { _, load := s.units.Charged(id); return load }
	slices.SortFunc(ids, func(a, b int) int { return cmp.Or(cmp.Compare(load(b), load(a)), cmp.Compare(a, b)) })
	r.Top = []TopKey{}
	for _, id := range ids[:min(len(ids), shownKeys)] {
		requests, load := s.units.Charged(id)
		k := TopKey{Key: s.units.Name(id), Requests: requests, Peak: round(s.units.Peak(id, r.Units.Recommended)), Refused: refused[id], Looks: s.clients.looks(s.keys[id])}
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
func (s *Study) histogram(r *Result) {
	bars := make([]Bar, 0, 16)
	for id := range s.units.Keys() {
		peak := s.units.Peak(id, r.Units.Recommended)
		n := 0
		if peak > 1 {
			n = int(math.Ceil(math.Log2(peak) - 1e-9))
		}
		for len(bars) <= n {
			bars = append(bars, Bar{Below: math.Exp2(float64(len(bars)))})
		}
		bars[n].Keys++
	}
	r.Histogram = bars
}

// mostOverrides is how many override lines are printed.
const mostOverrides = 10

// overrides lists addresses over the limit that look like many people. Only keys that
// are one address can have them.
func (s *Study) overrides(r *Result) {
	best := r.Units.Best()
	for id := range s.keys {
		name, client := s.units.Name(id), s.keys[id]
		if !s.units.Refused(id, r.Units.Recommended, best.Capacity) || s.clients.looks(client) != accesslog.Many {
			continue
		}
		if addr, err := netip.ParseAddr(name); err != nil || Person(addr) != client {
			continue
		}
		requests, _ := s.units.Charged(id)
		r.Overrides = append(r.Overrides, Override{
			Key: name, Capacity: math.Ceil(s.units.Peak(id, r.Units.Recommended)), Leak: best.Leak, Requests: requests, Agents: int(s.clients.all[client].agents.Count()),
		})
	}
	slices.SortFunc(r.Overrides, func(a, b Override) int { return cmp.Compare(b.Requests, a.Requests) })
	r.Overrides = r.Overrides[:min(len(r.Overrides), mostOverrides)]
}

// notes says why the data may be too thin to tell.
func (s *Study) notes(r *Result) {
	note := func(format string, args ...any) { r.Notes = append(r.Notes, fmt.Sprintf(format, args...)) }
	counted, clients := r.Keys, r.noun+"s"
	if r.People {
		counted, clients = r.PeopleKeys, "people"
	}
	switch {
	case r.Requests == 0:
		note("No request was charged, so there is nothing to learn from.")
		return
	case counted == 0:
		note("No client loaded static assets, so none looks like a person. Run it without --people, on a log that has the assets.")
	case counted == 1 && r.People:
		note("Only one person is in the log, and sets the limit. Read a longer log.")
	case counted == 1:
		note("Only one %s is in the log, and sets the limit. Read a longer log.", r.noun)
	case float64(counted)*(1-r.Spare/100) < 1:
		note("%v%% of %s %s is all of them, so the busiest one sets the limit. Read a longer log, or give a lower --spare.", r.Spare, comma(counted), clients)
	}
	if span := r.To.Sub(r.From); span < 24*time.Hour {
		note("The log covers only %s. A week or more has the busiest days in it.", Span(span.Seconds()))
	}
	switch top := r.Top[0]; {
	case r.Keys == 1:
		note("All requests are charged to one key: %s. If that is your proxy or CDN, tell Caddy of it by trusted_proxies, and log the addresses of clients.", printable(top.Key))
	case top.Load > 0.5 && r.People:
		note("%s sent %s of the load. If that is your proxy or CDN, tell Caddy of it by trusted_proxies.", printable(top.Key), Share(top.Load))
	case top.Load > 0.5:
		note("%s sent %s of the load. If that is your proxy or CDN, tell Caddy of it by trusted_proxies. If it is a robot, try --people.", printable(top.Key), Share(top.Load))
	}
	if burst := r.Units.Best().Capacity; burst <= smallBurst {
		note("A burst of %s is small. If a page of your site sends several requests at once, raise the capacity.", Number(burst))
	}
	if s.limited*50 > s.n {
		note("%s of the requests were answered with 429 or 503 already. Clients would have sent something else without that.", Share(float64(s.limited)/float64(s.n)))
	}
	if s.times == nil {
		note("The log has no durations, so there is nothing to say about settle seconds and in_flight. Caddy's JSON log has them.")
	} else if s.timed < r.Requests {
		note("%s of %s requests have no duration and do not count for settle seconds and in_flight.", comma(r.Requests-s.timed), comma(r.Requests))
	}
}
