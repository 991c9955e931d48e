package recommend

import (
	"cmp"
	"fmt"
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
	Networks  []Network    `json:"networks"` // of many addresses that sent much together
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

// A Network is a /24, or a /48 of IPv6.
type Network struct {
	Network   string  `json:"network"`
	Addresses int     `json:"addresses"`
	Share     float64 `json:"requests_share"` // of all requests, from 0 to 1
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

	// A network is named from so many addresses and so much of all requests on.
	fewestAddresses = 10
	leastShare      = 0.05

	// mostTimes is how many times the limit an override may be.
	mostTimes = 5
)

// Result computes what to recommend. Assets is how many requests were left out because
// they were for static assets.
func (s *Study) Result(assets int) (*Result, error) {
	r := &Result{
		Zone: s.zone, Key: s.options.Key, noun: s.noun(), cost: s.options.Cost, Spare: s.options.Spare, People: s.options.People,
		From: s.from, To: s.to, Requests: s.units.Requests(), Assets: assets, Keys: s.units.Keys(),
		Overrides: []Override{}, Withheld: []string{}, Notes: []string{}, Refused: []RefusedKey{}, Crawlers: []string{},
	}
	for id := range s.keys {
		if s.person(id) {
			r.PeopleKeys++
		}
	}
	var err error
	least := 1.0
	if s.zone == "" {
		least = leastBurst
	}
	if r.Units, err = s.curve(s.units, "request", least); err != nil {
		return nil, err
	}
	if s.times != nil && s.durationsMeant() {
		seconds, err := s.curve(s.times, "second of work", 1)
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
	s.refused(r, refused)
	s.histogram(r)
	r.Networks = s.clients.networks()
	s.overrides(r)
	if s.options.Check == "" {
		s.withhold(r)
	}
	if err := s.holdOut(r, least); err != nil {
		return nil, err
	}
	s.notes(r)
	if len(r.Withheld) == 0 {
		r.Caddyfile = r.lines()
	}
	return r, nil
}

// person reports whether the key is one of a client that looks like a person.
func (s *Study) person(id int) bool { return s.clients.person(s.keys[id]) }

// curve returns the curve of a survey, with the recommended limit, whose capacity is at
// least that.
func (s *Study) curve(in *survey.Survey, unit string, least float64) (Curve, error) {
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
	describe := func(i int, p survey.Point) Point {
		point := Point{
			Leak: s.ladder[i], Capacity: p.Capacity, RefillSeconds: p.TimeToEmpty(p.Capacity).Seconds(),
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
		return point
	}
	for i, p := range points {
		c.Points = append(c.Points, describe(i, p))
	}
	chosen := choose(c.Points, least)
	capacity, _ := s.options.checked()
	if capacity > 0 && in != s.times {
		chosen = len(points) - 1
	} else if capacity, err = generous(in, chosen, points[chosen], least); err != nil {
		return Curve{}, err
	}
	tight, p := c.Points[chosen], points[chosen]
	p.Capacity = capacity
	p.RefusedKeys, p.RefusedRequests, p.RefusedLoad = 0, 0, 0
	for id := range in.Keys() {
		if in.Refused(id, chosen, p.Capacity) {
			p.RefusedKeys++
		}
	}
	err = in.Refusals(chosen, p.Capacity, func(_ int, _ leakybucket.Instant, cost float64) {
		p.RefusedRequests++
		p.RefusedLoad += cost
	})
	c.Recommended, c.Points[chosen] = chosen, describe(chosen, p)
	verb := "Recommended"
	if s.options.Check != "" && in != s.times {
		verb = "To check"
	}
	c.Reason = c.reason(verb, in.Keys(), in.Requests(), unit, s.noun(), tight)
	return c, err
}

// generous returns the largest capacity that, with the leak of a point, removes nearly as
// much of the load as the capacity there, and is full again within ten minutes. A burst
// hardly changes what a scraper gets in an hour, and people come in bursts that the log has
// not seen.
func generous(in *survey.Survey, leak int, p survey.Point, least float64) (float64, error) {
	low, high := p.Capacity, math.Floor(p.Leak*forgives.Seconds())
	const steps = 16
	for high > low {
		// Of capacities between the two, find the last that removes enough.
		step := math.Ceil((high - low) / steps)
		var tried []float64
		for capacity := low + step; capacity < high+step; capacity += step {
			tried = append(tried, min(capacity, high))
		}
		removed, err := in.Removed(leak, tried)
		if err != nil {
			return 0, err
		}
		enough := 0
		for enough < len(tried) && removed[enough] >= nearlyAll*p.RefusedLoad {
			enough++
		}
		if enough > 0 {
			low = tried[enough-1]
		}
		if enough == len(tried) || step == 1 {
			break
		}
		high = tried[enough] - 1
	}
	// Two digits are as exact as a log can be.
	if unit := math.Pow(10, math.Floor(math.Log10(low))-1); unit > 1 {
		low = max(p.Capacity, math.Floor(low/unit)*unit)
	}
	return max(low, least), nil
}

// choose returns the index of the limit to recommend. All of them spare the same
// share of the clients. Of those that give a client its whole burst back within ten
// minutes, and remove nearly as much of the load as the best of these, it is the one
// with the largest burst: people come in bursts, and the log has not seen them all. The
// burst will be at least that.
func choose(points []Point, least float64) int {
	best := 0.0
	forgiving := func(p Point) bool {
		return p.RefillSeconds*max(1, least/p.Capacity) <= forgives.Seconds()+1e-6
	}
	for _, p := range points {
		if forgiving(p) {
			best = max(best, p.RefusedLoad)
		}
	}
	chosen := -1
	for i, p := range points {
		if !forgiving(p) || p.RefusedLoad < nearlyAll*best {
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

// overrides lists addresses over the limit that look like many people, whose requests follow
// a day and need no more than a few times the limit. Only keys that are one address can have
// them.
func (s *Study) overrides(r *Result) {
	best := r.Units.Best()
	for id := range s.keys {
		name, client := s.units.Name(id), s.keys[id]
		if !s.units.Refused(id, r.Units.Recommended, best.Capacity) || s.clients.looks(client) != accesslog.Many {
			continue
		}
		if s.units.Peak(id, r.Units.Recommended) > mostTimes*best.Capacity || !s.clients.all[client].daily() {
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

// withhold says why the log is no ground for a limit.
func (s *Study) withhold(r *Result) {
	why := func(format string, args ...any) { r.Withheld = append(r.Withheld, fmt.Sprintf(format, args...)) }
	if r.Requests == 0 {
		why("No request was charged.")
		return
	}
	if r.Requests < leastRequests {
		why("Only %s charged. Read a longer log.", were(r.Requests))
	}
	if span := r.To.Sub(r.From); span < leastSpan {
		why("The log covers only %s. A week or more has the busiest days in it.", Span(span.Seconds()))
	}
	switch top := r.Top[0]; {
	case 2*s.nobody > s.n:
		why("%s of the requests have no address of a client. Log it: Caddy's JSON has client_ip, unless a filter removes it.", Share(float64(s.nobody)/float64(s.n)))
	case top.Load > mostOfOne:
		why("%s sent %s of the load. If that is your proxy or CDN, name it in trusted_proxies and log the addresses of clients. If it is a robot, ban it or leave its lines out of the log.", printable(top.Key), Share(top.Load))
	}
	if r.PeopleKeys == 0 {
		why("No client looks like a person, who loads static assets with pages. Read a log that has the assets.")
	}
	if best := r.Units.Best(); best.RefusedLoad < leastRemoved {
		why("No limit that spares %v%% of the clients removes more than %s of the load, so there is nothing to hold back in this log.", r.Spare, Share(leastRemoved))
	}
}

const (
	heldOut = 0.3 // of the log's time

	// mostApart is by how much the limits of two parts of a log may differ, as a factor.
	mostApart = 2
)

// holdOut chooses a limit by the first part of the log, and judges it by the rest. If it is
// far from that of the whole log, there is no limit to recommend.
func (s *Study) holdOut(r *Result, least float64) error {
	if len(r.Withheld) > 0 || s.options.Check != "" {
		return nil
	}
	cut := leakybucket.Instant(r.To.UnixMicro() - int64(heldOut*float64(r.To.Sub(r.From).Microseconds())))
	first := survey.New(leaksOf(s.ladder))
	defer first.Close()
	var failed error
	rest := 0.0
	err := s.units.Each(func(id int, at leakybucket.Instant, cost float64) {
		if at >= cut {
			rest += cost
		} else if failed == nil {
			_, failed = first.Add(s.units.Name(id), at, cost)
		}
	})
	if err = cmp.Or(err, failed); err != nil {
		return err
	}
	c, err := s.curve(first, "request", least)
	if err != nil {
		return err
	}
	best, all := c.Best(), r.Units.Best()
	h := &HoldOut{Leak: best.Leak, Capacity: best.Capacity}
	people := make(map[int]bool)
	err = s.units.Refusals(c.Recommended, best.Capacity, func(id int, at leakybucket.Instant, cost float64) {
		if at < cut {
			return
		}
		h.Load += cost
		if s.person(id) {
			people[id] = true
		}
	})
	h.People = len(people)
	if rest > 0 {
		h.Load /= rest
	}
	r.HoldOut = h
	apart := func(a, b float64) bool { return max(a/b, b/a) > mostApart }
	leak := leaksOf(s.ladder)
	if apart(best.Capacity, all.Capacity) || apart(leak[c.Recommended], leak[r.Units.Recommended]) {
		r.Withheld = append(r.Withheld, fmt.Sprintf("The first 70%% of the log gives limit %s %s, and all of it limit %s %s, so another week may give a third one. Read a longer log.",
			Number(best.Capacity), best.Leak, Number(all.Capacity), all.Leak))
	}
	return err
}

// refused lists the keys that are refused most often, and what crawlers they say they are.
func (s *Study) refused(r *Result, refused map[int]int) {
	ids := slices.SortedFunc(maps.Keys(refused), func(a, b int) int { return cmp.Or(cmp.Compare(refused[b], refused[a]), cmp.Compare(a, b)) })
	for i, id := range ids {
		c := s.clients.all[s.keys[id]]
		if c == nil {
			continue
		}
		agent := strings.ToLower(c.agent)
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
			Key: s.units.Name(id), Agent: c.agent, Asks: c.asks(), First: time.Unix(c.first, 0).UTC(), Last: time.Unix(c.last, 0).UTC(),
			Requests: requests, Refused: refused[id], Assets: int(c.assets), Looks: s.clients.looks(s.keys[id]),
		})
	}
	slices.Sort(r.Crawlers)
}

// notes says what the figures leave out.
func (s *Study) notes(r *Result) {
	note := func(format string, args ...any) { r.Notes = append(r.Notes, fmt.Sprintf(format, args...)) }
	counted, clients := r.Keys, r.noun+"s"
	if r.People {
		counted, clients = r.PeopleKeys, "people"
	}
	switch {
	case r.Requests == 0:
		return
	case counted == 1:
		note("Only one %s is in the log, and sets the limit. Read a longer log.", strings.Replace(strings.TrimSuffix(clients, "s"), "people", "person", 1))
	case float64(counted)*(1-r.Spare/100) < 1:
		note("%v%% of %s %s is all of them, so the busiest one sets the limit. Read a longer log, or give a lower --spare.", r.Spare, comma(counted), clients)
	}
	if len(r.Crawlers) > 0 {
		note("Clients that the limit refuses say that they are %s. If you want these, let them pass: exempt verified_crawler %s.", strings.Join(r.Crawlers, ", "), strings.Join(r.Crawlers, " "))
	}
	for _, n := range r.Networks {
		note("%s addresses of %s sent %s of all requests. A zone with key client_ip ipv4 24 ipv6 48 counts them as one.", comma(n.Addresses), n.Network, Share(n.Share))
	}
	if s.limited*50 > s.n {
		note("%s of the requests were answered with 429 or 503 already. Clients would have sent something else without that.", Share(float64(s.limited)/float64(s.n)))
	}
	if s.times != nil && !s.durationsMeant() {
		note("The numbers in the place of durations cannot be times: they are too small, or only grow. They are left out.")
	} else if s.times == nil {
		note("The log has no durations, so there is nothing to say about settle seconds and in_flight. Caddy's JSON log has them.")
	} else if s.timed < r.Requests {
		note("%s of %s requests have no duration and do not count for settle seconds and in_flight.", comma(r.Requests-s.timed), comma(r.Requests))
	}
}
