package storetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// manyBuckets is a bound small enough to fill quickly, and large enough for a
// store to be itself.
const manyBuckets = 4096

// numbered returns n charges to buckets of their own.
func numbered(name string, n int, l leakybucket.Limit, cost float64) []leakybucket.Charge {
	all := make([]leakybucket.Charge, n)
	for i := range all {
		all[i] = charge(fmt.Sprint(name, i), l, cost)
	}
	return all
}

// nothingLiveForgotten watches buckets drain while others come and go.
func nothingLiveForgotten(tb testing.TB, open Open) {
	s := beginHeld(tb, open, Need{})
	const seconds = 61
	watched := numbered("watched", seconds, limit(100, 1), 0)
	for i := range watched {
		watched[i].Cost = float64(i) + 0.5
		s.pours(watched[i], 0)
	}
	// A slower leak counts from the next pour, and what costs nothing is one.
	quick := charges(charge("slowed", limit(100, 50), 50), charge("slowed together", limit(100, 50), 50))
	slow := charges(charge("slowed", limit(100, 0.5), 0), charge("slowed together", limit(100, 0.5), 0))
	s.pours(quick[0], 0)
	s.pours(slow[0], 50)
	s.pours(quick[1], 0)
	s.take(charges(slow[1], charge("beside", limit(1, 1), 1)), want{poured, 50}, want{poured, 0})
	for second := range seconds {
		s.at(time.Duration(second) * time.Second)
		for _, c := range numbered(fmt.Sprint("passing", second, "/"), 40, limit(1, 1), 1) {
			s.pours(c, 0)
		}
		for _, c := range watched {
			s.wantLevel(c, max(0, c.Cost-float64(second)))
		}
		for _, c := range slow {
			s.wantLevel(c, 50-0.5*float64(second))
		}
	}
}

func countsBuckets(tb testing.TB, open Open) {
	s := beginHeld(tb, open, Need{})
	counter, ok := s.store.(leakybucket.Counter)
	if !ok {
		s.Log("not examined: the store is no leakybucket.Counter")
		return
	}
	c := func(zone, key string, cost float64) leakybucket.Charge {
		return leakybucket.Charge{Zone: zone, Key: key, Limit: limit(10, 0.01), Cost: cost}
	}
	expect := func(a, b int) {
		s.Helper()
		if got := counter.Buckets(); got["a"] != a || got["b"] != b || s.buckets() != a+b {
			s.Fatalf("buckets: got %v, want a:%d b:%d", got, a, b)
		}
	}
	expect(0, 0)
	s.pours(c("a", "1", 1), 0)
	s.pours(c("a", "2", 1), 0)
	s.pours(c("a", "2", 1), 1)
	s.pours(c("b", "1", 1), 0)
	s.pours(shadow(c("a", "1", 1)), 0)
	expect(3, 1)                  // the shadow one included
	s.refuses(c("a", "3", 11), 0) // what pours nothing makes no bucket
	s.take(charges(c("b", "2", 1), c("b", "3", 11)), want{held, 0}, want{refused, 0})
	expect(3, 1)
}

// drainedDisappear gives a store some minutes of traffic to forget buckets that
// nobody asks for again.
func drainedDisappear(tb testing.TB, open Open) {
	s := beginHeld(tb, open, Need{MaxBuckets: manyBuckets})
	if _, ok := s.store.(leakybucket.Counter); !ok {
		s.Log("not examined: the store is no leakybucket.Counter")
		return
	}
	for _, c := range numbered("drained", manyBuckets/2, limit(1, 1), 1) {
		s.pours(c, 0)
	}
	const busy = manyBuckets / 16
	for minute := range 60 {
		s.at(time.Duration(minute+1) * time.Minute)
		for _, c := range numbered("busy", busy, limit(1, 1), 1) {
			s.pours(c, 0)
		}
	}
	if got := s.buckets(); got > 2*busy {
		s.Errorf("buckets an hour after %d were drained, with %d in use: got %d, want at most %d", manyBuckets/2, busy, got, 2*busy)
	}
}

// buckets counts all buckets of a store that can count them, else none.
func (s *subject) buckets() int {
	sum := 0
	if counter, ok := s.store.(leakybucket.Counter); ok {
		for _, n := range counter.Buckets() {
			sum += n
		}
	}
	return sum
}

// beginBounded opens a store for manyBuckets buckets, if it is one that drops
// some.
func beginBounded(tb testing.TB, open Open) (*subject, leakybucket.Evicter) {
	s := beginHeld(tb, open, Need{MaxBuckets: manyBuckets})
	evicter, ok := s.store.(leakybucket.Evicter)
	if !ok {
		s.Log("not examined: the store is no leakybucket.Evicter")
	}
	return s, evicter
}

// insert pours into fresh buckets, and watches the bound.
func (s *subject) insert(all []leakybucket.Charge) {
	s.Helper()
	for i, c := range all {
		s.pours(c, 0)
		if i%64 == 0 || i == len(all)-1 {
			s.bounded()
		}
	}
}

func (s *subject) bounded() {
	s.Helper()
	if got := s.buckets(); got > manyBuckets {
		s.Fatalf("buckets: got %d, want at most %d", got, manyBuckets)
	}
}

// lost counts the buckets that no longer hold what was poured.
func (s *subject) lost(all []leakybucket.Charge, level float64) int {
	s.Helper()
	lost := 0
	for _, c := range all {
		if !near(c.Limit, s.level(c), level) {
			lost++
		}
	}
	return lost
}

// dropsEmptyFirst fills a store in which half of the buckets are empty by then.
func dropsEmptyFirst(tb testing.TB, open Open) {
	s, evicter := beginBounded(tb, open)
	if evicter == nil {
		return
	}
	s.insert(numbered("short", manyBuckets/2, limit(10, 1), 1))
	old := numbered("old", manyBuckets/4, limit(10, 0.001), 1)
	s.insert(old)
	s.at(2 * time.Second)
	young := numbered("young", manyBuckets*3/8, limit(10, 0.001), 1)
	s.insert(young)
	if got := s.lost(old, 0.998) + s.lost(young, 1); got != 0 {
		s.Errorf("live buckets dropped while others were empty: got %d, want 0", got)
	}
	if got := evicter.Evictions(); got != 0 {
		s.Errorf("evictions while there were empty buckets to forget: got %d, want 0", got)
	}
}

// fullOfLive fills a store with live buckets and goes on. Those go first that
// would be empty soonest, since their callers gain the least by it.
func fullOfLive(tb testing.TB, open Open) {
	s, evicter := beginBounded(tb, open)
	if evicter == nil {
		return
	}
	var soon, late []leakybucket.Charge
	for i := range manyBuckets / 2 {
		soon = append(soon, charge(fmt.Sprint("soon", i), limit(10, 0.1), 1))
		late = append(late, charge(fmt.Sprint("late", i), limit(10, 1./3600), 1))
		s.pours(soon[i], 0)
		s.pours(late[i], 0)
	}
	const more = manyBuckets / 4
	young := numbered("young", more, limit(10, 1./3600), 1)
	s.insert(young)

	lostSoon, lostLate := s.lost(soon, 1), s.lost(late, 1)+s.lost(young, 1)
	if lostLate > manyBuckets/100 {
		s.Errorf("buckets with an hour to drain that were dropped, beside some with 10 s: got %d, want at most %d", lostLate, manyBuckets/100)
	}
	if lost := lostSoon + lostLate; lost < more {
		s.Errorf("buckets dropped after %d were poured into a store for %d: got %d, want %d or more", manyBuckets+more, manyBuckets, lost, more)
	} else if got := evicter.Evictions(); got != uint64(lost) {
		s.Errorf("evictions: got %d, want %d, all that were dropped", got, lost)
	}
}
