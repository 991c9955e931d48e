// Package recommend finds limits for a zone in the charges of a log: it replays them under many
// limits, by the zone's own terms. Begin with [Study].
package recommend

import (
	"cmp"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/tune/internal/accesslog"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/tune/internal/clients"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// ladder are the leaks that are tried, as they are written in a Caddyfile.
var ladder = []string{"15/h", "30/h", "1/m", "2/m", "4/m", "8/m", "15/m", "30/m", "1/s", "2/s", "4/s", "8/s", "15/s"}

// rate returns a leak in units a second.
func rate(leak string) float64 {
	units, _ := leakybucket.ParseRate(leak) // which has been checked
	return units
}

// Options say what to look for.
type Options struct {
	// Spare is the percentage of the people that the limits must leave untouched.
	Spare float64 `json:"spare_percent"`

	// Pages is set if the zone is none of a config: it charges pages to the client's address.
	Pages bool `json:"-"`

	// Check is a limit to judge instead of one to recommend, if it has a leak.
	Check Limit `json:"-"`
}

// A Limit is a leak, as it is written in a Caddyfile, and a capacity.
type Limit struct {
	Leak     string  `json:"leak"`
	Capacity float64 `json:"capacity"`
}

// Text returns the limit as a Caddyfile takes it.
func (l Limit) Text() string { return numberText(l.Capacity) + " " + l.Leak }

// A Study keeps the charges of one zone in the order of the log, and looks what the zone would
// have decided with other limits. It keeps about 130 bytes for each key and 32 for each charge.
type Study struct {
	Options
	zone    *limit.Zone
	clients *clients.Table

	ids      map[string]int // keys to their numbers
	keys     []key
	requests int
	limited  int // requests that were answered with 429 or 503
	nobody   int // requests without an address
	from, to time.Time
}

type key struct {
	name    string
	sender  netip.Addr        // of its first request
	fixed   leakybucket.Limit // of an override, which holds whatever the limit of the zone
	people  int               // whom the client looks like
	load    float64           // what all requests cost, in units
	charges []charge          // of each request, in the order of time
}

// A charge is what a request asked of a bucket.
type charge struct {
	at   leakybucket.Instant
	cost float64             // in units; negative if the zone refuses the request whatever the limit
	diff float64             // by which the response corrects it
	took leakybucket.Instant // until then
}

// NewStudy returns a study of a zone, whose limit does not matter.
func NewStudy(zone *limit.Zone, known *clients.Table, o Options) *Study {
	return &Study{Options: o, zone: zone, clients: known, ids: make(map[string]int)}
}

// Add notes what the zone has decided about a request where nothing is refused for its limit,
// and by how much the response corrects that, after so long.
func (s *Study) Add(r *accesslog.Request, o *limit.Outcome, diff float64, took time.Duration) {
	if s.to = r.At; s.requests == 0 {
		s.from = r.At
	}
	if r.Status == 429 || r.Status == 503 {
		s.limited++
	}
	if !r.Client.IsValid() {
		s.nobody++
	}
	name := r.Shown(o.Key)
	id, known := s.ids[name]
	if !known {
		id, name = len(s.keys), strings.Clone(name)
		s.ids[name] = id
		s.keys = append(s.keys, key{name: name, sender: r.Client})
	}
	k, c := &s.keys[id], charge{at: leakybucket.Instant(r.At.UnixMicro()), cost: o.Cost, diff: diff, took: leakybucket.Instant(took.Microseconds())}
	switch {
	case o.Reason() != limit.None:
		c.cost = -1
	case o.Limit != s.zone.Limit:
		k.fixed = o.Limit
	}
	s.requests++
	k.load += s.load(&c)
	k.charges = append(k.charges, c)
}

// load returns what a charge costs in the end, in units.
func (s *Study) load(c *charge) float64 {
	if s.zone.Settle != nil && s.zone.Settle.After {
		return max(0, c.diff)
	}
	return max(0, c.cost) + c.diff
}

// A correction is due at a time.
type correction struct {
	leakybucket.Settlement
	at leakybucket.Instant
}

// replay takes the charges of a key from its bucket, corrects them as the zone does, and calls
// f with each and what became of it.
func (s *Study) replay(id int, l leakybucket.Limit, f func(c *charge, d *leakybucket.Decision)) {
	if fixed := s.keys[id].fixed; fixed.Capacity > 0 {
		l = fixed
	}
	var asked leakybucket.Charge
	s.zone.Charge(&asked, &limit.Bucket{Limit: l}, false, 0)
	var state leakybucket.State
	var due []correction
	for i := range s.keys[id].charges {
		c, d := &s.keys[id].charges[i], leakybucket.Decision{}
		for len(due) > 0 && due[0].at <= c.at {
			state, due = due[0].Apply(state, due[0].at), due[1:]
		}
		if c.cost >= 0 {
			if c.cost != asked.Cost {
				s.zone.Charge(&asked, &limit.Bucket{Limit: l}, false, c.cost)
			}
			asked.Take(&state, c.at, &d)
		}
		f(c, &d)
		if d.Fits && c.diff != 0 {
			at := c.at + c.took
			n, _ := slices.BinarySearchFunc(due, at+1, func(c correction, at leakybucket.Instant) int { return cmp.Compare(c.at, at) })
			due = slices.Insert(due, n, correction{leakybucket.Settlement{Charge: asked, Was: d, Diff: c.diff}, at})
		}
	}
}

// A rung is a leak of the ladder, and the capacity that each key needs with it to be never
// refused: infinite if none is enough, negative if it was charged nothing.
type rung struct {
	*Study
	leak  string
	needs []float64
}

// tolerance is the rounding within which Take accepts an exact fill.
const tolerance = 1e-9

// rungs returns these leaks of the ladder. In a bucket that is never full, the highest level is
// the capacity that the key needs.
func (s *Study) rungs(leaks ...string) (rungs []*rung) {
	for _, leak := range leaks {
		rungs = append(rungs, &rung{s, leak, make([]float64, len(s.keys))})
	}
	for id := range s.keys {
		s.keys[id].people = s.client(id).People()
		for _, r := range rungs {
			needs := -1.0
			limit := leakybucket.Limit{Capacity: min(1e12, 1e8*rate(r.leak)), Leak: rate(r.leak)} // a larger one does not empty within years
			s.replay(id, limit, func(c *charge, d *leakybucket.Decision) {
				level := d.Level + c.cost
				switch {
				case !d.Fits:
					level = math.Inf(1)
				case s.keys[id].fixed.Capacity > 0:
					level = 0
				case c.cost == 0:
					level *= 1 + 4*tolerance // it fits only below the capacity
				}
				needs = max(needs, level)
			})
			r.needs[id] = needs
		}
	}
	return rungs
}

// judge returns what a limit with that capacity does, and calls f with each charge that it
// refuses. Those of one key come in order.
func (r *rung) judge(capacity float64, f func(id int, c *charge)) Point {
	limit := leakybucket.Limit{Capacity: capacity, Leak: rate(r.leak)}
	p := Point{Limit: Limit{r.leak, capacity}, RefillSeconds: limit.TimeToEmpty(capacity).Seconds()}
	for id, needs := range r.needs {
		if needs <= capacity*(1+tolerance) {
			continue
		}
		before := p.RefusedRequests
		r.replay(id, limit, func(c *charge, d *leakybucket.Decision) {
			if !d.Fits {
				p.RefusedRequests++
				p.RefusedLoad += r.load(c)
				f(id, c)
			}
		})
		if p.RefusedRequests > before {
			p.RefusedKeys++
			if r.keys[id].people > 0 {
				p.RefusedPeople++
			}
		}
	}
	return p
}

// client returns the client that sent the first request of a key.
func (s *Study) client(id int) *clients.Client { return s.clients.Of(s.keys[id].sender) }

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
	RefusedPeople   int     `json:"refused_people"` // keys of clients that look like people
	RefusedRequests int     `json:"refused_requests"`
	RefusedLoad     float64 `json:"refused_load_share"` // of the whole load, from 0 to 1
}

// Best returns the point that is recommended.
func (c *Curve) Best() Point { return c.Points[c.Recommended] }

func ignored(int, *charge) {}

// curve finds, for each leak of the ladder, the least whole capacity that spares the people, and
// no less than floor, and what that refuses. It recommends one of these limits, whose rung it
// returns, too. If there is a limit to check, that is the last one.
func (s *Study) curve(floor float64) (*Curve, *rung) {
	c, leaks, check := new(Curve), slices.Clone(ladder), s.Check.Leak != ""
	if check {
		leaks = append(leaks, s.Check.Leak)
	}
	rungs := s.rungs(leaks...)
	for _, r := range rungs {
		c.Points = append(c.Points, r.judge(max(floor, r.capacityFor(s.Spare/100)), ignored))
	}
	c.Recommended = choose(c.Points)
	if check {
		c.Recommended = len(leaks) - 1
	}
	best, r := &c.Points[c.Recommended], rungs[c.Recommended]
	if check {
		*best = r.judge(s.Check.Capacity, ignored)
	} else {
		*best = r.generous(*best)
	}
	for i := range s.keys {
		c.Load += s.keys[i].load
	}
	// Rounded, as the last bits of sums depend on the order of the keys in the log.
	c.Load = math.Round(c.Load*1e6) / 1e6
	for i := range c.Points {
		p := &c.Points[i]
		p.RefusedLoad = math.Round(p.RefusedLoad/cmp.Or(c.Load, 1)*1e9) / 1e9
	}
	return c, r
}

// capacityFor returns the least whole capacity that spares that share of the people, or of
// those whom any capacity spares.
func (r *rung) capacityFor(spare float64) float64 {
	var needs []float64
	for id, n := range r.needs {
		if n >= 0 {
			needs = append(needs, slices.Repeat([]float64{n}, r.keys[id].people)...)
		}
	}
	slices.Sort(needs)
	// 0.999 of 1000 is 999.0000000000001 in places: a key too many would be spared.
	most := 0.0
	for _, n := range needs[:int(math.Ceil(spare*float64(len(needs))-1e-6))] {
		if !math.IsInf(n, 1) {
			most = n
		}
	}
	return max(1, math.Ceil(most/(1+tolerance)))
}

// generous returns the limit with the leak of a point and the largest round capacity that
// removes nearly as much of the load as the capacity there, and is full again within ten
// minutes. A burst hardly changes what a scraper gets in an hour, and people come in bursts
// that the log has not seen.
func (r *rung) generous(least Point) (best Point) {
	most := math.Floor(rate(least.Leak)*forgives + 1e-6)
	best = least
	for capacity := rounded(margin * least.Capacity); least.RefusedLoad > 0 && best.Capacity < most; capacity = rounded(capacity + 1) {
		p := r.judge(min(most, capacity), ignored)
		if p.RefusedLoad < nearlyAll*least.RefusedLoad {
			break
		}
		best = p
	}
	return best
}

// rounded returns the next number of one digit and zeros.
func rounded(n float64) float64 {
	unit := math.Pow10(int(math.Log10(n)))
	return unit * math.Ceil(n/unit)
}

// choose returns the index of the limit to recommend. All of them spare the same share of the
// people. Of those that give a client its whole burst back within ten minutes, and remove
// nearly as much of the load as the best of these, it is the one with the fastest leak.
func choose(points []Point) int {
	best, chosen := 0.0, len(points)-1 // it forgives soonest
	for _, p := range points {
		if p.RefillSeconds <= forgives+.001 {
			best = max(best, p.RefusedLoad)
		}
	}
	for i, p := range points {
		if p.RefillSeconds <= forgives+.001 && p.RefusedLoad >= nearlyAll*best {
			chosen = i
		}
	}
	return chosen
}
