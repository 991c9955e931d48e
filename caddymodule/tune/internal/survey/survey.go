// Package survey finds limits for traffic that was recorded. Begin with [Survey].
//
// A [Survey] keeps charges. For each leak of a ladder it fills an unbounded bucket for
// every key, in virtual time. The highest level of that bucket is exactly the capacity
// that the key needs to be never refused. So the capacity that spares 99.9% of the keys is
// a quantile of these peaks.
package survey

import (
	"cmp"
	"encoding/binary"
	"math"
	"math/bits"
	"slices"
	"strings"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// tolerance is the rounding within which Take accepts an exact fill.
const tolerance = 1e-9

// A Survey collects the charges of many keys, in any order. It keeps about 130 bytes for
// each key and fifteen for each charge, and while it looks at them eight more for each key
// and leak. It is not safe for concurrent use.
type Survey struct {
	// Weights say how much each key counts where a share of them is to be spared: at first
	// all the same. Those that count are people.
	Weights []float64

	Keys     int     // that were charged
	Requests int     // charges
	Load     float64 // the sum of all costs, in units

	leaks []float64
	ids   map[string]int // keys to their numbers
	keys  []key

	seconds bool                // charges cost the seconds that they took
	until   leakybucket.Instant // the end of the charges that count

	tallies []tally  // by key
	buffer  []charge // of one key
}

// A tally is what a survey knows of a key.
type tally struct {
	load     float64
	requests int
}

// A charge is one request of a key.
type charge struct {
	at   leakybucket.Instant
	cost float64       // in units
	took time.Duration // to serve; negative if that is not known
}

// A key has its charges packed, in the order in which they came.
type key struct {
	name   string
	last   leakybucket.Instant // when the last one was
	packed []byte
}

func (k *key) add(c charge) {
	k.packed = binary.AppendVarint(k.packed, int64(c.at-k.last))
	k.packed = binary.AppendVarint(k.packed, int64(max(c.took, -1)))
	k.packed = binary.AppendUvarint(k.packed, bits.ReverseBytes64(math.Float64bits(c.cost))) // the last bits of most are zeros
	k.last = c.at
}

// New returns an empty survey that tries these leaks, in units of cost a second.
func New(leaks []float64) *Survey {
	return &Survey{leaks: leaks, ids: make(map[string]int), until: math.MaxInt64}
}

// Add charges cost to a key at an instant, and returns the key's number: 0 for the
// first key, 1 for the second. Took is how long the request was served, or negative. The
// key is cloned, and a cost that is negative or not a number counts as 1.
func (s *Survey) Add(name string, at leakybucket.Instant, cost float64, took time.Duration) int {
	if !(cost >= 0) {
		cost = 1
	}
	id, known := s.ids[name]
	if !known {
		id, name = len(s.keys), strings.Clone(name)
		s.ids[name] = id
		s.keys = append(s.keys, key{name: name})
		s.tallies, s.Weights = append(s.tallies, tally{}), append(s.Weights, 1)
	}
	s.count(id, cost)
	s.keys[id].add(charge{at, cost, took})
	return id
}

func (s *Survey) count(id int, cost float64) {
	t := &s.tallies[id]
	if t.requests == 0 {
		s.Keys++
	}
	t.requests++
	t.load += cost
	s.Requests++
	s.Load += cost
}

// Seconds returns a view of the survey, for a ladder of its own, in which charges cost the
// seconds that they took. Those of which that is not known do not count.
func (s *Survey) Seconds(leaks []float64) *Survey { return s.view(leaks, true, s.until) }

// Until returns a view of the charges before an instant.
func (s *Survey) Until(end leakybucket.Instant) *Survey { return s.view(s.leaks, s.seconds, end) }

func (s *Survey) view(leaks []float64, seconds bool, until leakybucket.Instant) *Survey {
	v := &Survey{Weights: s.Weights, leaks: leaks, ids: s.ids, keys: s.keys, seconds: seconds, until: until}
	v.tallies = make([]tally, len(s.keys))
	for id := range v.keys {
		for _, c := range v.charges(id) {
			v.count(id, c.cost)
		}
	}
	return v
}

// charges returns those of a key, in the order of time. They are valid until the next call.
func (s *Survey) charges(id int) []charge {
	left := s.keys[id].packed
	number := func() int64 {
		n, size := binary.Varint(left)
		left = left[size:]
		return n
	}
	s.buffer = s.buffer[:0]
	for c := (charge{}); len(left) > 0; {
		c.at += leakybucket.Instant(number())
		c.took = time.Duration(number())
		cost, size := binary.Uvarint(left)
		left = left[size:]
		if c.cost = math.Float64frombits(bits.ReverseBytes64(cost)); s.seconds {
			c.cost = c.took.Seconds()
		}
		if c.at < s.until && !(s.seconds && c.took < 0) {
			s.buffer = append(s.buffer, c)
		}
	}
	byTime := func(a, b charge) int { return cmp.Compare(a.at, b.at) }
	if !slices.IsSortedFunc(s.buffer, byTime) {
		slices.SortStableFunc(s.buffer, byTime)
	}
	return s.buffer
}

// Name returns the key with this number.
func (s *Survey) Name(id int) string { return s.keys[id].name }

// Charged returns how many charges the key had, and the sum of their costs.
func (s *Survey) Charged(id int) (requests int, load float64) {
	return s.tallies[id].requests, s.tallies[id].load
}

// peak returns the highest level of an unbounded bucket.
func peak(charges []charge, leak float64) (highest float64) {
	level, last := 0.0, leakybucket.Instant(0)
	for _, c := range charges {
		elapsed := float64(c.at-last) / 1e6 // as leakybucket has it, so that levels are equal to the last bit
		level, last = max(0, level-leak*elapsed)+c.cost, c.at
		needs := level
		if c.cost == 0 {
			needs *= 1 + 4*tolerance // a cost of 0 fits only below the capacity
		}
		highest = max(highest, needs)
	}
	return highest
}

// A Rung is a leak of the ladder, and what each key needs with it.
type Rung struct {
	survey *Survey
	leak   float64
	peaks  []float64
}

// Rung returns the leak of the ladder with that index.
func (s *Survey) Rung(leak int) *Rung { return s.rungs(s.leaks[leak : leak+1])[0] }

func (s *Survey) rungs(leaks []float64) []*Rung {
	rungs := make([]*Rung, len(leaks))
	for i, leak := range leaks {
		rungs[i] = &Rung{s, leak, make([]float64, len(s.keys))}
	}
	for id := range s.keys {
		charges := s.charges(id)
		for _, r := range rungs {
			r.peaks[id] = peak(charges, r.leak)
		}
	}
	return rungs
}

// A Point is one limit of the curve, and what it would have done to the traffic.
type Point struct {
	leakybucket.Limit

	RefusedKeys     int     // keys with at least one refusal
	RefusedPeople   int     // of them, people
	RefusedRequests int     // charges that did not fit
	RefusedLoad     float64 // the sum of their costs, in units
}

// Curve returns, for each leak of the ladder, the least whole capacity, and no less than
// floor, that leaves at least the share spare of the keys untouched, from 0 to 1. What each
// limit refuses is found by replaying the charges of all keys that need more.
func (s *Survey) Curve(spare, floor float64) (points []Point) {
	for _, r := range s.rungs(s.leaks) {
		points = append(points, r.Judge(max(floor, r.capacityFor(spare))))
	}
	return points
}

// capacityFor returns the least whole capacity that spares that share of the keys.
func (r *Rung) capacityFor(spare float64) float64 {
	var ids []int
	all := 0.0
	for id, t := range r.survey.tallies {
		if weight := r.survey.Weights[id]; t.requests > 0 && weight > 0 {
			ids = append(ids, id)
			all += weight
		}
	}
	slices.SortFunc(ids, func(a, b int) int { return cmp.Compare(r.peaks[a], r.peaks[b]) })
	// 0.999 of 1000 is 999.0000000000001 in places: a key too many would be spared.
	left, peak := spare*all-1e-6, 0.0
	for _, id := range ids {
		if left <= 0 {
			break
		}
		left, peak = left-r.survey.Weights[id], r.peaks[id]
	}
	return max(1, math.Ceil(peak/(1+tolerance)))
}

// Peak returns the highest level of a key's unbounded bucket: the least capacity with
// which the key is never refused.
func (r *Rung) Peak(id int) float64 { return r.peaks[id] }

// Refused reports whether a limit with this capacity refuses the key at least once.
func (r *Rung) Refused(id int, capacity float64) bool { return r.peaks[id] > capacity*(1+tolerance) }

// Judge returns what a limit with that capacity does.
func (r *Rung) Judge(capacity float64) Point {
	return r.Refusals(capacity, func(int, leakybucket.Instant, float64) {})
}

// Refusals does so, and calls f with each charge that it refuses. Those of one key come in
// order.
func (r *Rung) Refusals(capacity float64, f func(id int, at leakybucket.Instant, cost float64)) Point {
	p := Point{Limit: leakybucket.Limit{Capacity: capacity, Leak: r.leak}}
	for id := range r.peaks {
		if !r.Refused(id, capacity) {
			continue
		}
		p.RefusedKeys++
		if r.survey.Weights[id] > 0 {
			p.RefusedPeople++
		}
		var state leakybucket.State
		var d leakybucket.Decision
		for _, c := range r.survey.charges(id) {
			if state, d = p.Take(state, c.cost, c.at); !d.Fits {
				p.RefusedRequests++
				p.RefusedLoad += c.cost
				f(id, c.at, c.cost)
			}
		}
	}
	return p
}

// A span is the time in which a request was served.
type span struct{ from, to leakybucket.Instant }

// AtOnce returns how many requests of each key were served at once, at most, and how many
// of all keys together. Those of which it is not known how long they took do not count.
func (s *Survey) AtOnce() (most []int, all int) {
	together := make([]span, 0, s.Requests)
	for id := range s.keys {
		before := len(together)
		for _, c := range s.charges(id) {
			if c.took >= 0 {
				together = append(together, span{c.at, c.at + leakybucket.Instant(c.took.Microseconds())})
			}
		}
		most = append(most, atOnce(together[before:]))
	}
	slices.SortStableFunc(together, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	return most, atOnce(together)
}

// atOnce returns how many spans that are in order overlap, at most.
func atOnce(spans []span) (most int) {
	var ends []leakybucket.Instant // of those that last, in order
	for _, s := range spans {
		over := 0
		for over < len(ends) && ends[over] <= s.from {
			over++
		}
		ends = slices.Delete(ends, 0, over)
		i, _ := slices.BinarySearch(ends, s.to)
		ends = slices.Insert(ends, i, s.to)
		most = max(most, len(ends))
	}
	return most
}
