// Package survey finds limits for traffic that was recorded. Begin with [Survey].
//
// A [Survey] keeps charges. For each leak of a ladder it fills an unbounded bucket for
// every key, in virtual time. The highest level of that bucket is exactly the capacity
// that the key needs to be never refused. So the capacity that spares 99.9% of the keys is
// a quantile of these peaks.
package survey

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// tolerance is the rounding within which Take accepts an exact fill.
const tolerance = 1e-9

// A Survey collects the charges of many keys, in any order. It keeps about 90 bytes for
// each key, however many charges there are, and about 64 MB while it looks at them. It must
// be closed, and what it has found holds if that returns no error. It is not safe for
// concurrent use.
type Survey struct {
	// Weights say how much each key counts where a share of them is to be spared. Those that
	// count are people. If nil, all count the same.
	Weights []float64

	leaks    []float64
	ids      map[string]int32 // keys to their numbers
	names    []string
	recorded *recording

	seconds bool                // charges cost the seconds that they took
	until   leakybucket.Instant // the end of the charges that count

	tallies        []tally // by key
	keys, requests int
	load           float64
}

// A tally is what a survey knows of a key.
type tally struct {
	load     float64
	requests int
}

// New returns an empty survey that tries these leaks, in units of cost a second.
func New(leaks []float64) *Survey {
	return &Survey{leaks: leaks, ids: make(map[string]int32), recorded: new(recording), until: math.MaxInt64}
}

// Close removes the survey's temporary file, if there is one, and returns the first error of it.
// Views need not be closed.
func (s *Survey) Close() error { return s.recorded.close() }

// Add charges cost to a key at an instant, and returns the key's number: 0 for the
// first key, 1 for the second. Took is how long the request was served, or negative. The
// key is cloned, and a cost that is negative or not a number counts as 1. After the last
// one, [Survey.Sort] must be called.
func (s *Survey) Add(key string, at leakybucket.Instant, cost float64, took time.Duration) int {
	if !(cost >= 0) {
		cost = 1
	}
	id, known := s.ids[key]
	if !known {
		id = int32(len(s.names))
		name := strings.Clone(key)
		s.ids[name] = id
		s.names = append(s.names, name)
		s.tallies = append(s.tallies, tally{})
	}
	s.count(int(id), cost)
	s.recorded.add(charge{at, cost, took, id})
	return int(id)
}

func (s *Survey) count(id int, cost float64) {
	t := &s.tallies[id]
	if t.requests == 0 {
		s.keys++
	}
	t.requests++
	t.load += cost
	s.requests++
	s.load += cost
}

// Sort puts the charges in order.
func (s *Survey) Sort() { s.recorded.sort() }

// Seconds returns a view of the survey, for a ladder of its own, in which charges cost the
// seconds that they took. Those of which that is not known do not count.
func (s *Survey) Seconds(leaks []float64) *Survey { return s.view(leaks, true, s.until) }

// Until returns a view of the charges before an instant.
func (s *Survey) Until(end leakybucket.Instant) *Survey { return s.view(s.leaks, s.seconds, end) }

func (s *Survey) view(leaks []float64, seconds bool, until leakybucket.Instant) *Survey {
	v := &Survey{Weights: s.Weights, leaks: leaks, ids: s.ids, names: s.names, recorded: s.recorded, seconds: seconds, until: until}
	v.tallies = make([]tally, len(s.names))
	v.Each(func(id int, _ leakybucket.Instant, cost float64) { v.count(id, cost) })
	return v
}

// Each calls f with every charge, in the order of time.
func (s *Survey) Each(f func(id int, at leakybucket.Instant, cost float64)) {
	s.recorded.each(func(c charge) {
		if c.at >= s.until || s.seconds && c.took < 0 {
			return
		}
		if s.seconds {
			c.cost = c.took.Seconds()
		}
		f(int(c.key), c.at, c.cost)
	})
}

// Keys returns how many keys were charged.
func (s *Survey) Keys() int { return s.keys }

// Requests returns how many charges there were.
func (s *Survey) Requests() int { return s.requests }

// Load returns the sum of all costs, in units.
func (s *Survey) Load() float64 { return s.load }

// Name returns the key with this number.
func (s *Survey) Name(id int) string { return s.names[id] }

// Charged returns how many charges the key had, and the sum of their costs.
func (s *Survey) Charged(id int) (requests int, load float64) {
	return s.tallies[id].requests, s.tallies[id].load
}

// levels are unbounded buckets of all keys with some leaks: those of the first key, then
// those of the second.
type levels struct {
	last       []leakybucket.Instant
	now, peaks []float64
	column     []weighed // the people with one leak
}

// fill fills the buckets.
func (l *levels) fill(s *Survey, leaks []float64) {
	n := len(leaks)
	if l.last == nil {
		l.last, l.now, l.peaks = make([]leakybucket.Instant, len(s.names)), make([]float64, n*len(s.names)), make([]float64, n*len(s.names))
	}
	clear(l.last)
	clear(l.now)
	clear(l.peaks)
	s.Each(func(id int, at leakybucket.Instant, cost float64) {
		elapsed := float64(at-l.last[id]) / 1e6 // as leakybucket has it, so that levels are equal to the last bit
		l.last[id] = at
		now, peaks := l.now[id*n:][:n], l.peaks[id*n:][:n]
		for i, leak := range leaks {
			level := max(0, now[i]-leak*elapsed) + cost
			now[i] = level
			if cost == 0 {
				level *= 1 + 4*tolerance // a cost of 0 fits only below the capacity
			}
			peaks[i] = max(peaks[i], level)
		}
	})
}

// exceeds reports whether a bucket of that capacity refuses a key with that peak at least
// once.
func exceeds(peak, capacity float64) bool { return peak > capacity*(1+tolerance) }

// A Point is one limit of the curve, and what it would have done to the traffic.
type Point struct {
	leakybucket.Limit

	RefusedKeys     int     // keys with at least one refusal
	RefusedPeople   int     // of them, people
	RefusedRequests int     // charges that did not fit
	RefusedLoad     float64 // the sum of their costs, in units
}

// mostLevels is how many levels are kept at once by each of two goroutines.
const mostLevels = 1 << 20

// Curve returns, for each leak of the ladder, the least whole capacity, and no less than
// floor, that leaves at least the share spare of the keys untouched, from 0 to 1. What each
// limit refuses is found by replaying the charges of all keys that need more.
func (s *Survey) Curve(spare, floor float64) []Point {
	points := make([]Point, len(s.leaks))
	for i, leak := range s.leaks {
		points[i].Leak = leak
	}
	wide := max(1, min((len(points)+1)/2, mostLevels/max(1, len(s.names))))
	parts := slices.Collect(slices.Chunk(points, wide))
	var both sync.WaitGroup
	for worker := range 2 {
		both.Go(func() {
			var levels levels
			for part := worker; part < len(parts); part += 2 {
				s.curve(parts[part], &levels, spare, floor)
			}
		})
	}
	both.Wait()
	return points
}

// curve completes some points of the curve.
func (s *Survey) curve(points []Point, in *levels, spare, floor float64) {
	n := len(points)
	leaks := make([]float64, n)
	for i := range points {
		leaks[i] = points[i].Leak
	}
	in.fill(s, leaks)
	for i := range points {
		in.column = in.column[:0]
		for id := range s.names {
			if weight := s.weight(id); s.tallies[id].requests > 0 && weight > 0 {
				in.column = append(in.column, weighed{in.peaks[id*n+i], weight})
			}
		}
		points[i].Capacity = max(floor, capacityFor(in.column, spare))
	}
	s.judge(points, func(i, id int) float64 { return in.peaks[id*n+i] }, nil)
}

func (s *Survey) weight(id int) float64 {
	if s.Weights == nil {
		return 1
	}
	return s.Weights[id]
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
	left, peak := spare*all-1e-6, 0.0
	for _, k := range keys {
		if left <= 0 {
			break
		}
		left, peak = left-k.weight, k.peak
	}
	return max(1, math.Ceil(peak/(1+tolerance)))
}

// mostStates is how many buckets are kept at once while limits are tried.
const mostStates = 1 << 20

// judge takes every charge under several limits, each by itself, counts what they refuse,
// and calls f with it, if f is not nil. peak is what a key needs with the leak of limit i.
func (s *Survey) judge(limits []Point, peak func(i, id int) float64, f func(id int, at leakybucket.Instant, cost float64)) {
	// Only keys that need more than a limit are ever refused by it.
	var refused []int
	for id := range s.names {
		any := false
		for i := range limits {
			if exceeds(peak(i, id), limits[i].Capacity) {
				any = true
				limits[i].RefusedKeys++
				if s.weight(id) > 0 {
					limits[i].RefusedPeople++
				}
			}
		}
		if any {
			refused = append(refused, id)
		}
	}
	for some := range slices.Chunk(refused, max(1, mostStates/len(limits))) {
		states := make([]leakybucket.State, len(limits)*len(some))
		first := make(map[int][]leakybucket.State, len(some))
		for i, id := range some {
			first[id] = states[i*len(limits):][:len(limits)]
		}
		s.Each(func(id int, at leakybucket.Instant, cost float64) {
			for i, state := range first[id] {
				next, d := limits[i].Take(state, cost, at)
				first[id][i] = next
				if d.Fits {
					continue
				}
				limits[i].RefusedRequests++
				limits[i].RefusedLoad += cost
				if f != nil {
					f(id, at, cost)
				}
			}
		})
	}
}

// A Rung is a leak of the ladder, and what each key needs with it.
type Rung struct {
	survey *Survey
	leak   float64
	peaks  []float64
}

// Rung returns the leak of the ladder with that index.
func (s *Survey) Rung(leak int) *Rung {
	var in levels
	in.fill(s, s.leaks[leak:leak+1])
	return &Rung{s, s.leaks[leak], in.peaks}
}

// Peak returns the highest level of a key's unbounded bucket: the least capacity with
// which the key is never refused.
func (r *Rung) Peak(id int) float64 { return r.peaks[id] }

// Refused reports whether a limit with this capacity refuses the key at least once.
func (r *Rung) Refused(id int, capacity float64) bool { return exceeds(r.peaks[id], capacity) }

// Judge returns what a limit with that capacity does.
func (r *Rung) Judge(capacity float64) Point { return r.Refusals(capacity, nil) }

// Refusals does so, and calls f with each charge that it refuses. Those of one key come in
// order.
func (r *Rung) Refusals(capacity float64, f func(id int, at leakybucket.Instant, cost float64)) Point {
	points := []Point{{Limit: leakybucket.Limit{Capacity: capacity, Leak: r.leak}}}
	r.survey.judge(points, func(_, id int) float64 { return r.peaks[id] }, f)
	return points[0]
}

// AtOnce returns how many requests of each key were served at once, at most, and how many
// of all keys together. Those of which it is not known how long they took do not count.
func (s *Survey) AtOnce() (most []int32, all int) {
	most = make([]int32, len(s.names))
	now := make([]int32, len(s.names))
	var busy []charge // that are being served; their times are the ends, in order
	s.recorded.each(func(c charge) {
		if c.took < 0 {
			return
		}
		over := 0
		for ; over < len(busy) && busy[over].at <= c.at; over++ {
			now[busy[over].key]--
		}
		c.at += leakybucket.Instant(c.took.Microseconds())
		i, _ := slices.BinarySearchFunc(busy[over:], c, byTime)
		busy = slices.Insert(slices.Delete(busy, 0, over), i, c)
		now[c.key]++
		most[c.key] = max(most[c.key], now[c.key])
		all = max(all, len(busy))
	})
	return most, all
}
