package storetest

import (
	"math"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

func settledUp(tb testing.TB, open Open) {
	for _, test := range []struct {
		debt, cost, diff, want float64
	}{
		{10, 4, 3, 7},
		{10, 4, 6, 10},
		{10, 9, 5, 14},
		{10, 9, 11, 20},
		{10, 9, 50, 20},
		{10, 0, 2, 2}, // what cost nothing
		{10, 0, 1e12, 20},
		{1e12, 1, 1e11, 1e11 + 1},
		{0.5, 9, 1.25, 10.25},
		{0.5, 9, 50, 10.5},
		{0, 9, 0.5, 9.5},
		{0, 9, 50, 10},
		{0, 10, 1, 10},
	} {
		s := beginHeld(tb, open, Need{})
		c := inDebt(charge("k", limit(10, 1), test.cost), test.debt)
		was := s.charged(c, 0, test.diff)
		s.settle(was)
		s.wantLevel(c, test.want)
		s.at(time.Second)
		s.wantLevel(c, test.want-1)
	}

	// A level above what may be owed is not lowered, by whatever it got there.
	s := beginHeld(tb, open, Need{})
	k := func(cost, debt float64) leakybucket.Charge { return inDebt(charge("k", limit(10, 1), cost), debt) }
	first, second, third := s.charged(k(1, 10), 0, 50), s.charged(k(1, 2), 1, 3), s.charged(k(1, 0), 2, 3)
	s.settle(first)
	s.wantLevel(k(0, 10), 20)
	s.settle(second)
	s.wantLevel(k(0, 10), 20)
	s.at(4 * time.Second)
	s.settle(third)
	s.wantLevel(k(0, 10), 16)
	s.at(6 * time.Second)
	s.wantLevel(k(0, 10), 14)
}

// settledUpGone settles charges whose bucket has drained, or was never there.
// The time since the charge is no matter when there is more to pay.
func settledUpGone(tb testing.TB, open Open) {
	s := beginHeld(tb, open, Need{})
	k := func(key string) leakybucket.Charge { return inDebt(charge(key, limit(10, 1), 2), 5) }
	drained := s.charged(k("drained"), 0, 3)
	probed := s.decided(probe(k("probed")), want{held, 0}, 4)
	s.settle(probed)
	s.wantLevel(k("probed"), 4)
	s.settle(s.gone(k("gone"), 50))
	s.wantLevel(k("gone"), 15)
	s.at(time.Minute)
	s.settle(drained)
	s.wantLevel(k("drained"), 3)
	s.at(time.Minute + time.Second)
	s.wantLevel(k("drained"), 2)
	s.pours(k("drained"), 2)
}

// debtNoRoom: a settlement may pour above the capacity, a take may not.
func debtNoRoom(tb testing.TB, open Open) {
	s := beginHeld(tb, open, Need{})
	k := func(cost float64) leakybucket.Charge { return inDebt(charge("k", limit(10, 1), cost), 10) }
	other := charge("other", limit(10, 1), 1)
	s.refuses(k(10.5), 0)
	was := s.charged(k(8), 0, 4)
	s.refuses(k(3), 8)
	s.settle(was)
	for _, cost := range []float64{0, 0.5, 10} {
		s.refuses(k(cost), 12)
		s.refuses(probe(k(cost)), 12)
		s.take(charges(k(cost), other), want{refused, 12}, want{held, 0})
	}
	s.at(2 * time.Second)
	s.refuses(k(0), 10)
	s.at(3 * time.Second)
	s.pours(k(1), 9)
}

// settledDown settles a charge of 5 beside 3 in the bucket, some seconds after
// it was made. Another charge in between changes nothing about its time.
func settledDown(tb testing.TB, open Open) {
	for _, test := range []struct {
		cost, between float64
		seconds       int
		diff, want    float64
	}{
		{5, 0, 0, -5, 3},
		{5, 0, 0, -2, 6},
		{5, 0, 0, -1e-3, 7.999},
		{5, 0, 2, -5, 3}, // of 5 have leaked 2
		{5, 0, 2, -4, 4},
		{5, 0, 2, -2, 6}, // less than has leaked
		{5, 0, 5, -5, 3},
		{5, 0, 6, -5, 2},
		{5, 0, 60, -5, 0},
		{5, 2, 0, -5, 5},
		{5, 2, 1, -5, 5},
		{5, 2, 4, -5, 5},
		{5, 2, 6, -5, 4},
		{5, 0, 0, -6, 3}, // no more than was poured
		{5, 0, 0, -1e12, 3},
		{5, 0, 2, -1e12, 3},
		{5, 0, 6, -1e12, 2},
		{0, 0, 0, -1, 3},
		{5, 0, 0, 0, 8},
		{5, 0, 2, 0, 6},
	} {
		s := beginHeld(tb, open, Need{})
		k := func(cost float64) leakybucket.Charge { return inDebt(charge("k", limit(10, 1), cost), 10) }
		s.pours(k(3), 0)
		was := s.charged(k(test.cost), 3, test.diff)
		elapsed := time.Duration(test.seconds) * time.Second
		if test.between > 0 {
			s.at(elapsed)
			s.pours(k(test.between), max(0, 3+test.cost-elapsed.Seconds()))
		}
		s.at(elapsed)
		s.settle(was)
		s.wantLevel(k(0), test.want)
		s.at(elapsed + time.Second)
		s.wantLevel(k(0), max(0, test.want-1))
	}
}

// settledDownGone gives back to buckets that are no longer what they were.
func settledDownGone(tb testing.TB, open Open) {
	s := beginHeld(tb, open, Need{})
	k := func(key string, cost float64) leakybucket.Charge {
		return inDebt(charge(key, limit(10, 1), cost), 10)
	}
	s.pours(k("again", 2), 0)
	s.settle(s.gone(k("again", 5), -5)) // never below empty
	s.wantLevel(k("again", 0), 0)
	s.pours(k("again", 10), 0)
	s.bucketsAre(1)
	for _, diff := range []float64{-5, -1, -1e-9, -1e12, 0} {
		s.settle(s.gone(k("gone", 5), diff))
		s.wantLevel(k("gone", 0), 0)
	}
	s.bucketsAre(1)
	s.at(-5 * time.Second)
	s.pours(k("gone", 10), 0) // into a bucket that no settlement has dated
	s.at(-3 * time.Second)
	s.wantLevel(k("gone", 0), 8)
}

// settledUnpoured settles what only was asked. There is nothing to give back,
// and all of the diff to pay.
func settledUnpoured(tb testing.TB, open Open) {
	k := func(cost float64) leakybucket.Charge { return inDebt(charge("k", limit(10, 1), cost), 10) }
	full := charge("full", limit(1, 1), 1)
	for _, test := range []struct{ diff, want float64 }{{-3, 4}, {-1e12, 4}, {0, 4}, {2, 6}, {50, 20}} {
		for _, unpoured := range []struct {
			charge leakybucket.Charge
			beside []leakybucket.Charge
		}{
			{k(8), nil},
			{k(3), charges(full)},
			{probe(k(3)), nil},
			{probe(k(8)), nil},
			{probe(k(3)), charges(charge("roomy", limit(100, 1), 1))},
		} {
			s := beginHeld(tb, open, Need{})
			s.pours(full, 0)
			s.pours(k(4), 0)
			d := s.decide(append(charges(unpoured.charge), unpoured.beside...))[0]
			if d.Poured {
				s.Fatalf("%s: got it poured, want not", describe(unpoured.charge))
			}
			s.settle(leakybucket.Settlement{Charge: unpoured.charge, Was: d, Diff: test.diff})
			s.wantLevel(k(0), test.want)
		}
	}
}

// settledByNoAmount has diffs that a caller should have kept away: the cost of
// a response that took forever, or of one that nobody could read.
func settledByNoAmount(tb testing.TB, open Open) {
	huge, none := math.MaxFloat64, math.NaN()
	for _, test := range []struct{ diff, want, wantGone float64 }{
		{none, 6, 0},
		{math.Inf(1), 15, 15},
		{huge, 15, 15},
		{1e300, 15, 15},
		{math.Inf(-1), 2, 0},
		{-huge, 2, 0},
		{-1e300, 2, 0},
		{math.SmallestNonzeroFloat64, 6, 0},
		{-math.SmallestNonzeroFloat64, 6, 0},
		{math.Copysign(0, -1), 6, 0},
	} {
		s := beginHeld(tb, open, Need{})
		k := func(key string, cost float64) leakybucket.Charge {
			return inDebt(charge(key, limit(10, 1), cost), 5)
		}
		s.pours(k("k", 2), 0)
		s.settle(s.charged(k("k", 4), 2, test.diff))
		s.wantLevel(k("k", 0), test.want)
		s.settle(s.gone(k("gone", 4), test.diff))
		s.wantLevel(k("gone", 0), test.wantGone)
		s.at(time.Second)
		s.wantLevel(k("k", 0), test.want-1)
		s.wantLevel(k("gone", 0), max(0, test.wantGone-1))
		s.at(20 * time.Second)
		s.pours(k("k", 10), 0)
		s.pours(k("gone", 10), 0)
	}
}

func settledChangedLimit(tb testing.TB, open Open) {
	s := beginHeld(tb, open, Need{})
	k := func(capacity, leak, cost float64) leakybucket.Charge {
		return inDebt(charge("k", limit(capacity, leak), cost), capacity/2)
	}
	settled := func(was leakybucket.Settlement, capacity, leak, diff float64) {
		s.Helper()
		was.Charge.Limit, was.Charge.Debt, was.Diff = limit(capacity, leak), capacity/2, diff
		s.settle(was)
	}
	first, second := s.charged(k(20, 1, 4), 0, 0), s.charged(k(20, 1, 4), 4, 0)
	settled(first, 4, 1, 3) // a lower capacity pours nothing, and takes nothing away
	s.wantLevel(k(20, 1, 0), 8)
	settled(second, 4, 1, -3)
	s.wantLevel(k(20, 1, 0), 5)
	third, fourth := s.charged(k(20, 1, 1), 5, 0), s.charged(k(20, 1, 3), 6, 0)
	s.at(time.Second)
	settled(third, 40, 1, 60) // a higher one has room
	s.wantLevel(k(40, 1, 0), 60)
	s.at(2 * time.Second)
	settled(fourth, 40, 0.5, -3) // 59, of which 3 less what leaked in two seconds is given back
	s.wantLevel(k(40, 1, 0), 57)

	// By a slower leak more is given back than there is: never below empty.
	quick := s.charged(charge("quick", limit(10, 2), 6), 0, 0)
	s.at(4 * time.Second)
	s.pours(charge("quick", limit(10, 2), 1), 2)
	settled(quick, 10, 0.5, -6)
	s.wantLevel(charge("quick", limit(10, 2), 0), 0)
	s.pours(charge("quick", limit(10, 2), 10), 0)
}
