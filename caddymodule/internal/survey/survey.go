// Package survey finds limits for traffic that was recorded. Begin with [Survey].
//
// A [Survey] reads charges once, in virtual time. For each leak of a ladder it fills
// an unbounded bucket for every key. The highest level of that bucket is exactly the
// capacity that the key needs to be never refused. So the capacity that spares 99.9%
// of the keys is a quantile of these peaks.
package survey

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// tolerance is the rounding within which Take accepts an exact fill.
const tolerance = 1e-9

// A Survey collects the charges of many keys. It keeps about 350 bytes for each key
// with 16 leaks, however many charges there are. It must be closed. It is not safe
// for concurrent use.
type Survey struct {
	leaks    []float64
	ids      map[string]int32 // keys to their numbers
	names    []string
	keys     []tally
	levels   [][]float64 // by page of keys: the levels of each, then the peaks of each
	recorded recording

	requests int
	load     float64
}

// A tally is what a survey knows of a key beside its levels.
type tally struct {
	at       leakybucket.Instant
	load     float64
	requests int
}

// pageKeys is how many keys share one allocation of levels.
const pageKeys = 256

// New returns an empty survey that tries these leaks, in units of cost a second. Charges
// that do not fit 16 MB of memory are kept in a temporary file, at some six bytes each.
func New(leaks []float64) *Survey {
	return &Survey{leaks: leaks, ids: make(map[string]int32)}
}

// Close removes the survey's temporary file, if there is one.
func (s *Survey) Close() error { return s.recorded.close() }

// Add charges cost to a key at an instant, and returns the key's number: 0 for the
// first key, 1 for the second. The charges should come in order of time. If one comes
// late, nothing leaks until time has caught up, as in any bucket. The key is cloned,
// and a cost that is negative or not a number counts as 1.
func (s *Survey) Add(key string, at leakybucket.Instant, cost float64) (int, error) {
	if !(cost >= 0) {
		cost = 1
	}
	id, known := s.ids[key]
	if !known {
		id = int32(len(s.keys))
		name := strings.Clone(key)
		s.ids[name] = id
		s.names = append(s.names, name)
		s.keys = append(s.keys, tally{at: at})
		if int(id)%pageKeys == 0 {
			s.levels = append(s.levels, make([]float64, pageKeys*2*len(s.leaks)))
		}
	}
	t := &s.keys[id]
	at = max(at, t.at)
	s.requests++
	s.load += cost

	elapsed := float64(at-t.at) / 1e6 // as leakybucket has it, so that levels are equal to the last bit
	t.at = at
	t.requests++
	t.load += cost
	levels, peaks := s.levelsOf(int(id))
	peaks = peaks[:len(levels)]
	for i, leak := range s.leaks[:len(levels)] {
		level := levels[i] - leak*elapsed
		if level < 0 {
			level = 0
		}
		level += cost
		levels[i] = level
		if cost == 0 {
			level *= 1 + 4*tolerance // a cost of 0 fits only below the capacity
		}
		if level > peaks[i] {
			peaks[i] = level
		}
	}
	return int(id), s.recorded.add(int(id), at, cost)
}

func (s *Survey) levelsOf(id int) (levels, peaks []float64) {
	n := len(s.leaks)
	row := s.levels[id/pageKeys][id%pageKeys*2*n:][:2*n]
	return row[:n:n], row[n:]
}

// Keys returns how many keys were charged.
func (s *Survey) Keys() int { return len(s.keys) }

// Requests returns how many charges there were.
func (s *Survey) Requests() int { return s.requests }

// Load returns the sum of all costs, in units.
func (s *Survey) Load() float64 { return s.load }

// ID returns the number of a key, and false if it was never charged.
func (s *Survey) ID(key string) (int, bool) {
	id, known := s.ids[key]
	return int(id), known
}

// Name returns the key with this number.
func (s *Survey) Name(id int) string { return s.names[id] }

// Charged returns how many charges the key had, and the sum of their costs.
func (s *Survey) Charged(id int) (requests int, load float64) {
	return s.keys[id].requests, s.keys[id].load
}

// Peak returns the highest level of a key's unbounded bucket with a leak of the
// ladder: the least capacity with which the key is never refused.
func (s *Survey) Peak(id, leak int) float64 {
	_, peaks := s.levelsOf(id)
	return peaks[leak]
}

// Refused reports whether a limit with this capacity and that leak of the ladder
// refuses the key at least once.
func (s *Survey) Refused(id, leak int, capacity float64) bool {
	return s.Peak(id, leak) > capacity*(1+tolerance)
}

// least returns the least whole capacity, and at least 1, into which a level fits.
func least(peak float64) float64 { return max(1, math.Ceil(peak/(1+tolerance))) }

// A Point is one limit of the curve, and what it would have done to the traffic.
type Point struct {
	leakybucket.Limit

	RefusedKeys     int     // keys with at least one refusal
	RefusedRequests int     // charges that did not fit
	RefusedLoad     float64 // the sum of their costs, in units
}

// Curve returns, for each leak of the ladder, the least whole capacity, and no less than
// floor, that leaves at least the share spare of the keys untouched, from 0 to 1. Keys count
// by their weights; nil means that all count the same. What each limit refuses is found by
// replaying the charges of all keys that need more.
func (s *Survey) Curve(spare, floor float64, weight func(id int) float64) ([]Point, error) {
	points := make([]Point, len(s.leaks))
	tried := make([]try, len(s.leaks))
	keys := make([]weighed, 0, len(s.keys))
	for i, leak := range s.leaks {
		keys = keys[:0]
		for id := range s.keys {
			w := 1.0
			if weight != nil {
				w = weight(id)
			}
			if w > 0 {
				keys = append(keys, weighed{s.Peak(id, i), w})
			}
		}
		tried[i] = try{i, max(floor, capacityFor(keys, spare))}
		points[i].Limit = leakybucket.Limit{Capacity: tried[i].capacity, Leak: leak}
		for id := range s.keys {
			if s.Refused(id, i, tried[i].capacity) {
				points[i].RefusedKeys++
			}
		}
	}
	return points, s.refusals(tried, func(leak, _ int, _ leakybucket.Instant, cost float64) {
		points[leak].RefusedRequests++
		points[leak].RefusedLoad += cost
	})
}

// A weighed key needs a capacity of its peak.
type weighed struct{ peak, weight float64 }

// capacityFor returns the least whole capacity that spares that share of the keys. It sorts
// them.
func capacityFor(keys []weighed, spare float64) float64 {
	slices.SortFunc(keys, func(a, b weighed) int { return cmp.Compare(a.peak, b.peak) })
	all := 0.0
	for _, k := range keys {
		all += k.weight
	}
	// 0.999 of 1000 is 999.0000000000001 in places: a key too many would be spared.
	left, capacity := spare*all-1e-6, 1.0
	for _, k := range keys {
		if left <= 0 {
			break
		}
		left, capacity = left-k.weight, least(k.peak)
	}
	return capacity
}

// Each calls f with every charge, in the order in which they were added.
func (s *Survey) Each(f func(id int, at leakybucket.Instant, cost float64)) error {
	return s.recorded.each(f)
}

// Refusals takes every charge under the limit with that capacity and that leak of the
// ladder, and calls f with those that do not fit, in their order.
func (s *Survey) Refusals(leak int, capacity float64, f func(id int, at leakybucket.Instant, cost float64)) error {
	return s.refusals([]try{{leak, capacity}}, func(_, id int, at leakybucket.Instant, cost float64) { f(id, at, cost) })
}

// A try is a limit: the index of its leak in the ladder, and its capacity.
type try struct {
	leak     int
	capacity float64
}

// refusals does so under several limits, each by itself. i is the index of the limit.
func (s *Survey) refusals(tried []try, f func(i, id int, at leakybucket.Instant, cost float64)) error {
	// Only keys that need more than a limit are ever refused by it.
	states := make(map[int][]leakybucket.State)
	for id := range s.keys {
		for _, one := range tried {
			if states[id] == nil && s.Refused(id, one.leak, one.capacity) {
				states[id] = make([]leakybucket.State, len(tried))
			}
		}
	}
	if len(states) == 0 {
		return nil
	}
	return s.recorded.each(func(id int, at leakybucket.Instant, cost float64) {
		own := states[id]
		for i, state := range own {
			next, d := leakybucket.Limit{Capacity: tried[i].capacity, Leak: s.leaks[tried[i].leak]}.Take(state, cost, at)
			own[i] = next
			if !d.Fits {
				f(i, id, at, cost)
			}
		}
	})
}
