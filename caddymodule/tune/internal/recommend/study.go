// Package recommend finds limits for a zone in the charges of a log: it replays them under many
// limits, by the zone's own terms. Begin with [Study].
package recommend

import (
	"cmp"
	"encoding/binary"
	"math"
	"math/bits"
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
	Spare float64

	// Key, Cost and Settle are those of a zone without a config, in the words of a Caddyfile.
	// Key is empty for a zone of a config.
	Key, Cost, Settle string

	// Check is a limit to judge instead of one to recommend, if it has a leak.
	Check Limit
}

// A Limit is a leak, as it is written in a Caddyfile, and a capacity.
type Limit struct {
	Leak     string  `json:"leak"`
	Capacity float64 `json:"capacity"`
}

// Text returns the limit as a Caddyfile takes it.
func (l Limit) Text() string { return numberText(l.Capacity) + " " + l.Leak }

// A Study keeps the charges of one zone in the order of the log, and looks what the zone would
// have decided with other limits. It keeps about 130 bytes for each key and ten for each charge.
type Study struct {
	options Options
	zone    *limit.Zone
	clients *clients.Table
	ladder  []string // of leaks; the last is the one to check, if there is one

	ids      map[string]int // keys to their numbers
	keys     []key
	requests int
	limited  int // requests that were answered with 429 or 503
	nobody   int // requests without an address
	from, to time.Time
	until    leakybucket.Instant // charges from then on do not count

	weights []float64 // by key; how much it counts where people are to be spared
	buffer  []charge  // of one key
}

// A key has its charges packed.
type key struct {
	name     string
	sender   netip.Addr        // of its first request
	fixed    leakybucket.Limit // of an override, which holds whatever the limit of the zone
	requests int
	load     float64             // what all requests cost, in units
	last     leakybucket.Instant // when the last one was
	packed   []byte
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
	s := &Study{options: o, zone: zone, clients: known, ladder: ladder, ids: make(map[string]int), until: math.MaxInt64}
	if o.Check.Leak != "" {
		s.ladder = append(slices.Clone(ladder), o.Check.Leak)
	}
	return s
}

// Add notes what the zone has decided about a request where nothing is refused for its limit,
// and by how much the response corrects that, after so long.
func (s *Study) Add(r *accesslog.Request, o *limit.Outcome, diff float64, took time.Duration) {
	if s.from.IsZero() || r.At.Before(s.from) {
		s.from = r.At
	}
	if r.At.After(s.to) {
		s.to = r.At
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
	k.requests++
	k.load += s.load(&c)
	k.packed = binary.AppendVarint(k.packed, int64(c.at-k.last))
	k.packed = binary.AppendUvarint(k.packed, packed(c.cost))
	if s.corrects() {
		k.packed = binary.AppendUvarint(binary.AppendUvarint(k.packed, packed(c.diff)), uint64(c.took))
	}
	k.last = c.at
}

// packed returns a number whose last bits, which are zeros for most, come first.
func packed(of float64) uint64 { return bits.ReverseBytes64(math.Float64bits(of)) }

// corrects reports whether responses correct charges.
func (s *Study) corrects() bool { return s.zone.Settle != nil || len(s.zone.Refund) > 0 }

// load returns what a charge costs in the end, in units.
func (s *Study) load(c *charge) float64 {
	if s.zone.Settle != nil && s.zone.Settle.After {
		return max(0, c.diff)
	}
	return max(0, c.cost) + c.diff
}

// charges returns those of a key, in the order of time. They are valid until the next call.
func (s *Study) charges(id int) []charge {
	left := s.keys[id].packed
	number := func() uint64 {
		n, size := binary.Uvarint(left)
		left = left[size:]
		return n
	}
	s.buffer = s.buffer[:0]
	for c := (charge{}); len(left) > 0; {
		after, size := binary.Varint(left)
		left = left[size:]
		c.at += leakybucket.Instant(after)
		c.cost = math.Float64frombits(bits.ReverseBytes64(number()))
		if s.corrects() {
			c.diff = math.Float64frombits(bits.ReverseBytes64(number()))
			c.took = leakybucket.Instant(number())
		}
		if c.at < s.until {
			s.buffer = append(s.buffer, c)
		}
	}
	byTime := func(a, b charge) int { return cmp.Compare(a.at, b.at) }
	if !slices.IsSortedFunc(s.buffer, byTime) {
		slices.SortStableFunc(s.buffer, byTime)
	}
	return s.buffer
}

// A correction is due at a time.
type correction struct {
	leakybucket.Settlement
	at leakybucket.Instant
}

// replay takes the charges of a key from its bucket, corrects them as the zone does, and calls
// f with each and what became of it.
func (s *Study) replay(id int, charges []charge, l leakybucket.Limit, f func(c *charge, d *leakybucket.Decision)) {
	if fixed := s.keys[id].fixed; fixed.Capacity > 0 {
		l = fixed
	}
	var asked leakybucket.Charge
	s.zone.Charge(&asked, &limit.Bucket{Limit: l}, false, 0)
	var state leakybucket.State
	var due []correction
	for i := range charges {
		c, d := &charges[i], leakybucket.Decision{}
		for len(due) > 0 && due[0].at <= c.at {
			state, due = due[0].Apply(state, due[0].at), due[1:]
		}
		if c.cost >= 0 {
			if c.cost != asked.Cost {
				asked.Cost = c.cost
				asked.Debt, asked.Ceiling, asked.Probe = s.zone.Terms(l, c.cost)
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

// A Rung is a leak of the ladder, and the capacity that each key needs with it to be never
// refused: infinite if none is enough, negative if it was charged nothing.
type Rung struct {
	study *Study
	leak  string
	needs []float64
}

// tolerance is the rounding within which Take accepts an exact fill.
const tolerance = 1e-9

// rungs returns these leaks of the ladder. In a bucket that is never full, the highest level is
// the capacity that the key needs.
func (s *Study) rungs(leaks ...string) []*Rung {
	rungs := make([]*Rung, len(leaks))
	limits := make([]leakybucket.Limit, len(leaks))
	for i, leak := range leaks {
		rungs[i] = &Rung{s, leak, make([]float64, len(s.keys))}
		limits[i] = leakybucket.Limit{Capacity: min(1e12, 1e8*rate(leak)), Leak: rate(leak)} // a larger one does not empty within years
	}
	for id := range s.keys {
		charges := s.charges(id)
		for i, r := range rungs {
			needs := -1.0
			s.replay(id, charges, limits[i], func(c *charge, d *leakybucket.Decision) {
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

// refuses reports whether a limit with this capacity may refuse the key.
func (r *Rung) refuses(id int, capacity float64) bool {
	return r.needs[id] > capacity*(1+tolerance)
}

// judge returns what a limit with that capacity does, and calls f with each charge that it
// refuses. Those of one key come in order.
func (r *Rung) judge(capacity float64, f func(id int, c *charge)) Point {
	s, l := r.study, leakybucket.Limit{Capacity: capacity, Leak: rate(r.leak)}
	p := Point{Limit: Limit{r.leak, capacity}, RefillSeconds: l.TimeToEmpty(capacity).Seconds()}
	for id := range r.needs {
		if !r.refuses(id, capacity) {
			continue
		}
		before := p.RefusedRequests
		s.replay(id, s.charges(id), l, func(c *charge, d *leakybucket.Decision) {
			if !d.Fits {
				p.RefusedRequests++
				p.RefusedLoad += s.load(c)
				f(id, c)
			}
		})
		if p.RefusedRequests > before {
			p.RefusedKeys++
			if s.person(id) {
				p.RefusedPeople++
			}
		}
	}
	return p
}

// person reports whether the key is one of a client that looks like a person, or like many.
func (s *Study) person(id int) bool { return s.clients.Of(s.keys[id].sender).Person() }
