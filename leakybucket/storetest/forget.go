package storetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
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
	for second := range seconds {
		s.at(time.Duration(second) * time.Second)
		for _, c := range numbered(fmt.Sprint("passing", second, "/"), 40, limit(1, 1), 1) {
			s.pours(c, 0)
		}
		for c, level := range levels {
			s.wantLevel(c, max(0, level-float64(second)))
		}
	}
}

// givenBackDisappear gives a store some minutes of traffic to forget buckets
// that would have taken a day to drain, and were settled down to nothing.
func givenBackDisappear(tb testing.TB, open Open) {
	s := beginHeld(tb, open, Need{MaxBuckets: manyBuckets})
	if _, ok := s.store.(leakybucket.Counter); !ok {
		s.Log("not examined: the store is no leakybucket.Counter")
		return
	}
	for _, c := range numbered("given back", manyBuckets/2, limit(1, 1e-5), 1) {
		s.settle(s.charged(c, 0, -1))
	}
	const busy = manyBuckets / 16
	for minute := range 60 {
		s.at(time.Duration(minute+1) * time.Minute)
		for _, c := range numbered("busy", busy, limit(1, 1), 1) {
			s.pours(c, 0)
		}
	}
	if got := s.buckets(); got > 2*busy {
		s.Errorf("buckets an hour after %d were given back to, with %d in use: got %d, want at most %d", manyBuckets/2, busy, got, 2*busy)
	}
}

// dropsGivenBackFirst fills a store in which half of the buckets were settled
// down to nothing.
func dropsGivenBackFirst(tb testing.TB, open Open) {
	s, evicter := beginBounded(tb, open)
	if evicter == nil {
		return
	}
	old := numbered("old", manyBuckets/4, limit(10, 0.01), 1)
	s.insert(old)
	for _, c := range numbered("given back", manyBuckets/2, limit(10, 0.001), 1) {
		s.settle(s.charged(c, 0, -1))
	}
	s.at(time.Second)
	young := numbered("young", manyBuckets*3/8, limit(10, 0.01), 1)
	s.insert(young)
	if got := s.lost(old, 0.99) + s.lost(young, 1); got != 0 {
		s.Errorf("live buckets dropped beside some that were given back to: got %d, want 0", got)
	}
	if got := evicter.Evictions(); got != 0 {
		s.Errorf("evictions while there were empty buckets to forget: got %d, want 0", got)
	}
}

// dropsLiftedLast fills a store with buckets that drain in 20 s, and with some
// that would in 10 s if they had not been settled upwards. Then settlements make
// more.
func dropsLiftedLast(tb testing.TB, open Open) {
	s, evicter := beginBounded(tb, open)
	if evicter == nil {
		return
	}
	lifted := numbered("lifted", manyBuckets/2, limit(1, 0.1), 1)
	for i, c := range lifted {
		c.Debt = 1000
		s.settle(s.charged(c, 0, 359))
		s.pours(charge(fmt.Sprint("plain", i), limit(10, 0.1), 2), 0)
	}
	for _, c := range numbered("made", manyBuckets/8, limit(10, 1./3600), 1) {
		s.settle(s.gone(c, 1))
	}
	s.bounded()
	if got := s.lost(lifted, 360); got > manyBuckets/100 {
		s.Errorf("buckets with an hour to drain that were dropped, beside some with 20 s: got %d, want at most %d", got, manyBuckets/100)
	}
}
