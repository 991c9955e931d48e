package storetest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// nothingInDebtForgotten watches buckets drain that were settled upwards when
// they were nearly empty, and some that a settlement has made.
func nothingInDebtForgotten(tb testing.TB, open Open) {
	s := beginHeld(tb, open, Need{})
	const seconds = 61
	levels := make(map[leakybucket.Charge]float64)
	for i, c := range numbered("lifted", seconds/4, limit(10, 1), 1) {
		c.Debt = 100
		s.settle(s.charged(c, 0, float64(4*i)+0.5))
		levels[c] = float64(4*i) + 1.5
	}
	made := inDebt(charge("made", limit(10, 1), 1), 100)
	s.settle(s.decided(probe(made), want{held, 0}, 50))
	levels[made] = 50
	// A slower leak counts from the next write, and a settlement is one.
	slowed := s.charged(inDebt(charge("slowed", limit(100, 50), 50), 100), 0, -1)
	slowed.Charge.Limit.Leak = 1
	s.settle(slowed)
	levels[slowed.Charge] = 49
	for second := 0; second < seconds; second += check.OrShort(1, 6) {
		s.at(time.Duration(second) * time.Second)
		s.passing(second, 40)
		for c, level := range levels {
			s.wantLevel(c, max(0, level-float64(second)))
		}
	}
}

// givenBackDisappear gives a store some minutes of traffic to forget buckets
// that would have taken a day to drain, and were settled down to nothing.
func givenBackDisappear(tb testing.TB, open Open) {
	s := beginHeld(tb, open, Need{MaxBuckets: manyBuckets})
	has[bucketCounter](s)
	for _, c := range numbered("given back", manyBuckets/2, limit(1, 1e-5), 1) {
		s.settle(s.charged(c, 0, -1))
	}
	s.forgetsInAnHour("given back to")
}

// dropsGivenBackFirst fills a store in which half of the buckets were settled
// down to nothing.
func dropsGivenBackFirst(tb testing.TB, open Open) {
	eachBound(tb, open, func(s *subject, evicter evictionCounter, bound int) {
		old := numbered("old", bound/4, limit(10, 0.01), 1)
		s.insert(old, bound)
		for _, c := range numbered("given back", bound/2, limit(10, 0.001), 1) {
			s.settle(s.charged(c, 0, -1))
		}
		s.at(time.Second)
		young := numbered("young", bound*3/8, limit(10, 0.01), 1)
		s.insert(young, bound)
		if got := s.lost(old, 0.99) + s.lost(young, 1); got != 0 {
			s.Errorf("live buckets dropped beside some that were given back to: got %d, want 0", got)
		}
		if got := evicter.Evictions(); got != 0 {
			s.Errorf("evictions while there were empty buckets to forget: got %d, want 0", got)
		}
	})
}

// dropsLiftedLast fills a store with buckets that drain in 20 s, and with some
// that would in 10 s if they had not been settled upwards. Then settlements make
// more.
func dropsLiftedLast(tb testing.TB, open Open) {
	eachBound(tb, open, func(s *subject, _ evictionCounter, bound int) {
		lifted := numbered("lifted", bound/2, limit(1, 0.1), 1)
		for i, c := range lifted {
			c.Debt = 1000
			s.settle(s.charged(c, 0, 359))
			s.pours(charge(fmt.Sprint("plain", i), limit(10, 0.1), 2), 0)
		}
		for _, c := range numbered("made", min(bound/8, 512), limit(10, 1./3600), 1) {
			s.settle(s.gone(c, 1))
		}
		s.bounded(bound)
		if got := s.lost(lifted, 360); got > bound/100 {
			s.Errorf("buckets with an hour to drain that were dropped, beside some with 20 s: got %d, want at most %d", got, bound/100)
		}
	})
}

// brief is a charge to a bucket that drains in a tenth of a second, and that an
// overflow blocks for ten seconds, then for twenty.
func brief(key string) leakybucket.Charge {
	return blocking(charge(key, limit(1, 10), 1), 10*time.Second, 20*time.Second)
}

// nothingBlockedForgotten watches blocks run and end while other buckets come
// and go: long after a bucket is empty its block runs, and for as long again the
// next one is of the next step.
func nothingBlockedForgotten(tb testing.TB, open Open) {
	s := beginHeld(tb, open, Need{})
	const length, seconds = 10, 32
	// The one that a ceiling has blocked was never anything but empty.
	empty := below(brief("empty"), 0.5)
	s.begins(empty, 0, length*time.Second)
	var watched []leakybucket.Charge
	for i := range seconds {
		c := brief(fmt.Sprint("watched", i))
		s.pours(c, 0)
		s.begins(c, 1, length*time.Second)
		watched = append(watched, c)
	}
	// A probe and a settlement are writes too, after which there is as much to keep.
	probed, settled := brief("probed"), brief("settled")
	s.pours(probed, 0)
	s.begins(probe(probed), 1, length*time.Second)
	was := s.charged(settled, 0, -1)
	s.begins(settled, 1, length*time.Second)
	s.settle(was)
	untilEmpty := blocking(charge("until empty", limit(10, 1), 10))
	s.pours(untilEmpty, 0)
	s.begins(untilEmpty, 10, length*time.Second)

	for second := 1; second < seconds; second++ {
		now := time.Duration(second) * time.Second
		s.at(now)
		s.passing(second, check.OrShort(40, 10))
		if second < length {
			for _, c := range append(watched, empty, probed, settled) {
				s.blocked(c, 0, length*time.Second)
			}
			s.blocked(untilEmpty, float64(10-second), length*time.Second)
			continue
		}
		// One a second overflows again. Within as long as its block was, that is
		// the next step.
		next := 20 * time.Second
		if second >= 2*length {
			next = 10 * time.Second
		}
		s.pours(watched[second], 0)
		s.begins(watched[second], 1, now+next)
	}
	s.at(seconds * time.Second)
	s.begins(empty, 0, (seconds+10)*time.Second)

	// A block of the second step is remembered for as long as that.
	s.at(45 * time.Second)
	s.passing(45, 40)
	s.pours(watched[length], 0)
	s.begins(watched[length], 1, 65*time.Second) // its last one was over after 30 s
}

// blockedDisappear gives a store some minutes of traffic to forget buckets whose
// blocks are long over.
func blockedDisappear(tb testing.TB, open Open) {
	s := beginHeld(tb, open, Need{MaxBuckets: manyBuckets})
	has[bucketCounter](s)
	const many = manyBuckets / 8
	for i := range many {
		c := brief(fmt.Sprint("blocked", i))
		s.pours(c, 0)
		s.begins(c, 1, 10*time.Second)
		s.begins(below(brief(fmt.Sprint("empty", i)), 0.5), 0, 10*time.Second)
	}
	s.at(19 * time.Second)
	s.bucketsAre(2 * many)
	s.forgetsInAnHour("blocked for 10 s")
}

// dropsBlockedLast fills a store with buckets that drain in 20 s, and with some
// that drain at once and are blocked for an hour.
func dropsBlockedLast(tb testing.TB, open Open) {
	eachBound(tb, open, func(s *subject, _ evictionCounter, bound int) {
		var all []leakybucket.Charge
		for i := range bound / 2 {
			c := blocking(charge(fmt.Sprint("blocked", i), limit(1, 10), 1), time.Hour)
			s.pours(c, 0)
			s.begins(c, 1, time.Hour)
			s.pours(charge(fmt.Sprint("plain", i), limit(10, 0.1), 2), 0)
			all = append(all, c)
		}
		s.insert(numbered("more", min(bound/8, 512), limit(10, 1./3600), 1), bound)
		lost := 0
		for _, c := range all {
			if d := s.decide(charges(probe(c)))[0]; d.BlockedUntil != epoch.Add(time.Hour) || d.Began {
				lost++
			}
		}
		if lost > bound/100 {
			s.Errorf("buckets blocked for an hour that were dropped, beside some with 20 s to drain: got %d, want at most %d", lost, bound/100)
		}
	})
}

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

// passing pours into fresh buckets, as clients do who come once.
func (s *subject) passing(second, n int) {
	s.Helper()
	for _, c := range numbered(fmt.Sprint("passing", second, "/"), n, limit(1, 1), 1) {
		s.pours(c, 0)
	}
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
	// A slower leak counts from the next pour, also from one that costs nothing.
	quick := charges(charge("slowed", limit(100, 50), 50), charge("slowed together", limit(100, 50), 50))
	slow := charges(charge("slowed", limit(100, 0.5), 0), charge("slowed together", limit(100, 0.5), 0))
	s.pours(quick[0], 0)
	s.pours(slow[0], 50)
	s.pours(quick[1], 0)
	s.take(charges(slow[1], charge("beside", limit(1, 1), 1)), want{poured, 50}, want{poured, 0})
	for second := 0; second < seconds; second += check.OrShort(1, 6) {
		s.at(time.Duration(second) * time.Second)
		s.passing(second, 40)
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
	counter := has[bucketCounter](s)
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
	s.refuses(c("a", "3", 11), 0) // a refusal makes no bucket
	s.take(charges(c("b", "2", 1), c("b", "3", 11)), want{held, 0}, want{refused, 0})
	expect(3, 1)
}

// drainedDisappear gives a store some minutes of traffic to forget buckets that
// nobody asks for again.
func drainedDisappear(tb testing.TB, open Open) {
	s := beginHeld(tb, open, Need{MaxBuckets: manyBuckets})
	has[bucketCounter](s)
	for _, c := range numbered("drained", manyBuckets/2, limit(1, 1), 1) {
		s.pours(c, 0)
	}
	s.forgetsInAnHour("drained")
}

// forgetsInAnHour wants buckets to disappear beside those that are in use.
func (s *subject) forgetsInAnHour(were string) {
	s.Helper()
	before := s.buckets()
	const busy = manyBuckets / 16
	for minute := range 60 {
		s.at(time.Duration(minute+1) * time.Minute)
		for _, c := range numbered("busy", busy, limit(1, 1), 1) {
			s.pours(c, 0)
		}
	}
	if got := s.buckets(); got > 2*busy {
		s.Errorf("buckets an hour after %d were %s, with %d in use: got %d, want at most %d", before, were, busy, got, 2*busy)
	}
}

// A bucketCounter is a store that knows how many buckets it keeps, by zones, shadow ones included.
type bucketCounter interface{ Buckets() map[string]int }

// An evictionCounter is a bounded store that knows how many buckets it has dropped that were not
// yet empty.
type evictionCounter interface{ Evictions() uint64 }

// buckets counts all buckets of a store that can count them, else none.
func (s *subject) buckets() int {
	sum := 0
	if counter, ok := s.store.(bucketCounter); ok {
		for _, n := range counter.Buckets() {
			sum += n
		}
	}
	return sum
}

// eachBound runs f on a store for some buckets and on one for many, which may
// keep them in several parts, if the store is one that drops some.
func eachBound(tb testing.TB, open Open, f func(s *subject, evicter evictionCounter, bound int)) {
	for _, bound := range []int{manyBuckets, 4 * manyBuckets} {
		s := beginHeld(tb, open, Need{MaxBuckets: bound})
		if f(s, has[evictionCounter](s), bound); s.Failed() {
			return
		}
	}
}

// insert pours into fresh buckets, and watches the bound.
func (s *subject) insert(all []leakybucket.Charge, bound int) {
	s.Helper()
	for i, c := range all {
		s.pours(c, 0)
		if i%512 == 0 || i == len(all)-1 {
			s.bounded(bound)
		}
	}
}

func (s *subject) bounded(bound int) {
	s.Helper()
	if got := s.buckets(); got > bound {
		s.Fatalf("buckets: got %d, want at most %d", got, bound)
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
	eachBound(tb, open, func(s *subject, evicter evictionCounter, bound int) {
		s.insert(numbered("short", bound/2, limit(10, 1), 1), bound)
		old := numbered("old", bound/4, limit(10, 0.001), 1)
		s.insert(old, bound)
		s.at(2 * time.Second)
		young := numbered("young", bound*3/8, limit(10, 0.001), 1)
		s.insert(young, bound)
		if got := s.lost(old, 0.998) + s.lost(young, 1); got != 0 {
			s.Errorf("live buckets dropped while others were empty: got %d, want 0", got)
		}
		if got := evicter.Evictions(); got != 0 {
			s.Errorf("evictions while there were empty buckets to forget: got %d, want 0", got)
		}
	})
}

// fullOfLive fills a store with live buckets and goes on. Those go first that
// would be empty soonest, since their callers gain the least by it.
func fullOfLive(tb testing.TB, open Open) {
	eachBound(tb, open, func(s *subject, evicter evictionCounter, bound int) {
		var soon, late []leakybucket.Charge
		for i := range bound / 2 {
			soon = append(soon, charge(fmt.Sprint("soon", i), limit(10, 0.1), 1))
			late = append(late, charge(fmt.Sprint("late", i), limit(10, 1./3600), 1))
			s.pours(soon[i], 0)
			s.pours(late[i], 0)
		}
		if got := evicter.Evictions(); got != 0 {
			s.Errorf("evictions when a store for %d has just become full: got %d, want 0", bound, got)
		}
		more := min(bound/4, check.OrShort(1024, 512))
		young := numbered("young", more, limit(10, 1./3600), 1)
		s.insert(young, bound)

		lostSoon, lostLate := s.lost(soon, 1), s.lost(late, 1)+s.lost(young, 1)
		if lostLate > bound/100 {
			s.Errorf("buckets with an hour to drain that were dropped, beside some with 10 s: got %d, want at most %d", lostLate, bound/100)
		}
		if lost := lostSoon + lostLate; lost < more {
			s.Errorf("buckets dropped after %d were poured into a store for %d: got %d, want %d or more", bound+more, bound, lost, more)
		} else if got := evicter.Evictions(); got != uint64(lost) {
			s.Errorf("evictions: got %d, want %d, all that were dropped", got, lost)
		}
	})
}

// resets begins a case of a store that forgets single buckets.
func resets(tb testing.TB, open Open) (*subject, func(c leakybucket.Charge)) {
	s := beginHeld(tb, open, Need{})
	resetter := has[store.Resetter](s)
	return s, func(c leakybucket.Charge) {
		s.Helper()
		if err := resetter.Reset(context.Background(), c.Zone, c.Key, c.Shadow); err != nil {
			s.Fatalf("resetting %s: got error %v, want none", bucketOf(c), err)
		}
	}
}

// resetForgets: level, block and step are gone, as if nothing had ever been
// asked of the bucket.
func resetForgets(tb testing.TB, open Open) {
	s, reset := resets(tb, open)
	k, other := guarded("k"), guarded("other")
	s.fill(k)
	s.begins(k, 10, time.Minute)
	s.at(time.Minute)
	s.fill(k)
	s.begins(k, 10, time.Minute+time.Hour)
	reset(k)
	s.wantLevel(k, 0)
	s.fill(k)
	s.begins(k, 10, 2*time.Minute) // of the first step
	s.blocked(k, 10, 2*time.Minute)

	// It is dated anew too.
	reset(k)
	s.at(55 * time.Second)
	s.pours(costing(k, 8), 0)
	s.at(57 * time.Second)
	s.wantLevel(k, 6)

	// A charge made before it gets nothing back.
	was := s.charged(costing(other, 5), 0, -5)
	reset(other)
	s.settle(was)
	s.settle(leaving(was))
	s.wantLevel(other, 0)
	s.pours(costing(other, 10), 0)
}

// resetOne: nothing else is touched, and nothing needs to be there.
func resetOne(tb testing.TB, open Open) {
	s, reset := resets(tb, open)
	k := guarded("k")
	elsewhere := k
	elsewhere.Zone = "elsewhere"
	others := charges(shadow(k), guarded("k/"), guarded("K"), guarded("kk"), guarded(""), elsewhere)
	s.fill(k)
	s.fill(others...)
	for _, c := range append(others, k) {
		s.begins(c, 10, time.Minute)
	}
	s.bucketsAre(len(others) + 1)
	reset(k)
	s.bucketsAre(len(others))
	for _, c := range others {
		s.blocked(c, 10, time.Minute)
	}
	s.pours(k, 0)
	s.bucketsAre(len(others) + 1)
	reset(shadow(k))
	s.pours(shadow(k), 0)
	s.pours(k, 1)
	for range 2 {
		reset(k)
		reset(guarded("never there"))
		reset(shadow(guarded("never there")))
	}
	s.bucketsAre(len(others))
	for _, c := range others[1:] {
		s.blocked(c, 10, time.Minute)
		reset(c)
		s.pours(c, 0)
	}
}
