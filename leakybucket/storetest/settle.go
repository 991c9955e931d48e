package storetest

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
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
		{10, 0, 2, 2}, // a charge that cost nothing
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

	// A level above capacity and debt stays, however it got there.
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

// settledUnpoured settles charges that were not poured. There is nothing to give back,
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

func settledTogether(tb testing.TB, open Open) {
	s := beginHeld(tb, open, Need{})
	k := func(key string, cost float64) leakybucket.Charge {
		return inDebt(charge(key, limit(10, 1), cost), 2)
	}
	s.settle()
	s.settle([]leakybucket.Settlement{}...)

	up, down := s.charged(k("up", 3), 0, 2), s.charged(k("down", 3), 0, -2)
	probed := s.decided(probe(k("probed", 3)), want{held, 0}, 7)
	s.settle(up, down, probed, s.gone(k("gone", 3), -3))
	s.wantLevel(up.Charge, 5)
	s.wantLevel(down.Charge, 1)
	s.wantLevel(probed.Charge, 7)
	s.wantLevel(k("gone", 0), 0)

	// Each begins where the one before ended.
	first, second, third := s.charged(k("k", 1), 0, 2), s.charged(k("k", 2), 1, -1), s.charged(k("k", 3), 3, 4)
	s.settle(first, up, second, third)
	s.wantLevel(k("k", 0), 11)
	s.wantLevel(up.Charge, 7)
	first.Diff, second.Diff = 50, -2
	s.settle(first, second)
	s.wantLevel(k("k", 0), 10)

	const n = 20
	many := make([]leakybucket.Settlement, n)
	for i := range many {
		many[i] = s.charged(k(fmt.Sprint("many", i), 1), 0, float64(i)/2)
	}
	s.settle(many...)
	for i := range many {
		s.wantLevel(many[i].Charge, min(12, 1+float64(i)/2))
	}
}

// settledCancelled accepts an error as well as a settlement, as for takes: but
// an error tells the caller that nothing was begun.
func settledCancelled(tb testing.TB, open Open) {
	s := beginHeld(tb, open, Need{})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	k := inDebt(charge("k", limit(1000, 1), 1), 1000)
	level := 0.0
	for i := range 100 {
		was := s.charged(k, level, []float64{2, -1}[i%2])
		level++
		if err := s.store.Settle(ctx, []leakybucket.Settlement{was}); err == nil {
			level += was.Diff
		}
	}
	s.settle(s.charged(k, level, 1))
	s.wantLevel(k, level+2)
}

// settledContended settles a thousand takes, each once, while others take and
// settle. Nothing leaks meanwhile and there is room for all, so in the end each
// bucket holds what was due, whatever the order.
func settledContended(tb testing.TB, open Open) {
	s := beginHeld(tb, open, Need{})
	const workers, rounds = 10, 125 // all meet at a fresh bucket in each round
	var made [workers][rounds]leakybucket.Settlement
	race(workers, rounds+1, func(w, round int) {
		if round < rounds {
			made[w][round] = s.reserveHalves(fmt.Sprint("k", round), w)
		}
		if round > 0 { // what the next one has taken
			if other := made[(w+1)%workers][round-1]; other.Was.Poured {
				s.trySettle(other)
			}
		}
	})
	wrong, example := 0, ""
	for round := range rounds {
		due := 0.0
		for w := range made {
			due += made[w][round].Diff
			if made[w][round].Was.Poured {
				due += made[w][round].Charge.Cost
			}
		}
		c := made[0][round].Charge
		if got := s.level(c); !near(c.Limit, got, due) {
			wrong, example = wrong+1, fmt.Sprintf("%v in place of %v in %s", got, due, bucketOf(c))
		}
	}
	if wrong > 0 {
		s.Errorf("level after all takes were settled: got other than what was due in %d of %d buckets (%s), want it in all", wrong, rounds, example)
	}
}

// reserveHalves takes, and returns what is to be settled. One of five only asks
// and pays at once. All are halves, so that sums are exact.
func (s *subject) reserveHalves(key string, i int) leakybucket.Settlement {
	c := inDebt(charge(key, limit(1000, 1), float64(1+i%4)/2), 1000)
	if i%5 == 0 {
		asked := leakybucket.Settlement{Charge: probe(c), Diff: c.Cost}
		s.trySettle(asked)
		return asked
	}
	decisions := make([]leakybucket.Decision, 1)
	if s.try(charges(c), decisions) && !decisions[0].Poured {
		s.Errorf("%s: got it refused at level %v, want it poured", describe(c), decisions[0].Level)
	}
	return leakybucket.Settlement{Charge: c, Was: decisions[0], Diff: []float64{-c.Cost, -0.5, 1, 2.5}[i%4]}
}

// leaving is what settles a charge whose client has left.
func leaving(was leakybucket.Settlement) leakybucket.Settlement {
	was.Cancel, was.Diff = true, 7 // a diff that means nothing
	return was
}

// cancelled: if nothing was poured since, all comes back, and what has leaked is
// not taken off.
func cancelled(tb testing.TB, open Open) {
	for _, test := range []struct {
		cost    float64
		seconds int
		want    float64
	}{
		{5, 0, 3},
		{5, 2, 1}, // settled, it would be 3
		{5, 4, 0},
		{5, 60, 0},
		{0.1, 0, 3},
		{0, 1, 2},
	} {
		s := beginHeld(tb, open, Need{})
		k := func(cost float64) leakybucket.Charge { return inDebt(charge("k", limit(10, 1), cost), 10) }
		s.pours(k(3), 0)
		was := s.charged(k(test.cost), 3, 0)
		s.refuses(k(9), 3+test.cost) // refusals and probes are no pours
		s.decide(charges(probe(k(1))))
		s.at(time.Duration(test.seconds) * time.Second)
		s.settle(leaving(was))
		s.wantLevel(k(0), test.want)
		s.at(time.Duration(test.seconds+1) * time.Second)
		s.wantLevel(k(0), max(0, test.want-1))
		s.pours(k(10-max(0, test.want-1)), max(0, test.want-1))
	}
}

// cancelledExactly has levels of as many digits as there are. A store that lost
// one could not tell that nothing was poured since.
func cancelledExactly(tb testing.TB, open Open) {
	s := beginHeld(tb, open, Need{})
	rng := rand.New(rand.NewPCG(17, 0))
	elapsed := time.Duration(0)
	for i := range 200 {
		l := limit(rng.ExpFloat64()*10, 0)
		l.Leak = l.Capacity / (1 + 1000*rng.Float64())
		k := func(cost float64) leakybucket.Charge {
			c := charge("k"+string(rune('a'+i%26)), l, cost)
			c.Zone = "zone" + string(rune('a'+i/26)) // a bucket of its own each time
			return c
		}
		filled := l.Capacity * rng.Float64() / 2
		s.pours(k(filled), 0)
		elapsed += time.Duration(1+rng.Int64N(1e6)) * time.Microsecond
		s.at(elapsed)
		cost := l.Capacity * rng.Float64() / 2
		was := s.decide(charges(k(cost)))[0]
		elapsed += time.Duration(rng.Int64N(1e6)) * time.Microsecond
		s.at(elapsed)
		s.settle(leaving(leakybucket.Settlement{Charge: k(cost), Was: was}))
		s.wantLevel(k(0), max(0, was.Level-l.Leak*s.now.Sub(was.At).Seconds()))
	}
}

// cancelledTooLate: clients that came since know when their turn is, so the place
// stays empty.
func cancelledTooLate(tb testing.TB, open Open) {
	k := func(cost float64) leakybucket.Charge { return inDebt(charge("k", limit(10, 1), cost), 10) }
	for _, test := range []struct {
		since func(s *subject)
		want  float64 // at once
	}{
		{func(s *subject) { s.pours(k(1), 6) }, 7},
		{func(s *subject) { s.pours(k(1), 6); s.pours(k(1), 7) }, 8},
		{func(s *subject) { s.take(charges(k(1), charge("other", limit(10, 1), 1)), want{poured, 6}) }, 7},
		{func(s *subject) { s.settle(leakybucket.Settlement{Charge: k(0), Diff: 2}) }, 8},
		{func(s *subject) { s.settle(leakybucket.Settlement{Charge: k(0), Diff: 50}) }, 20},
		{func(s *subject) { s.at(5 * time.Second); s.pours(k(5), 1) }, 6}, // as full as it was, later
		{func(s *subject) { s.at(6 * time.Second); s.pours(k(6), 0) }, 6},
		{func(s *subject) { s.at(time.Second); s.settle(s.charged(k(3), 5, -3)) }, 5}, // at the level that time alone would leave
	} {
		s := beginHeld(tb, open, Need{})
		s.pours(k(2), 0)
		was := s.charged(k(4), 2, 0)
		test.since(s)
		s.settle(leaving(was))
		s.wantLevel(k(0), test.want)
	}

	// Another bucket, or the shadow of this one, is nothing to it.
	s := beginHeld(tb, open, Need{})
	was, shadowed := s.charged(k(4), 0, 0), s.charged(shadow(k(4)), 0, 0)
	other := s.charged(charge("other", limit(10, 1), 4), 0, 0)
	s.settle(leaving(was))
	s.wantLevel(k(0), 0)
	s.wantLevel(shadow(k(0)), 4)
	s.wantLevel(other.Charge, 4)
	s.settle(leaving(shadowed), leaving(other))
	s.wantLevel(shadow(k(0)), 0)
	s.wantLevel(other.Charge, 0)
}

// cancelledTogether cancels several charges in one call, each from what the one
// before has left.
func cancelledTogether(tb testing.TB, open Open) {
	k := func(cost float64) leakybucket.Charge { return inDebt(charge("k", limit(10, 1), cost), 10) }
	queue := func() (*subject, []leakybucket.Settlement) {
		s := beginHeld(tb, open, Need{})
		s.pours(k(1), 0)
		first, second, third := s.charged(k(2), 1, 0), s.charged(k(3), 3, 0), s.charged(k(0.1), 6, 0)
		return s, []leakybucket.Settlement{leaving(first), leaving(second), leaving(third)}
	}
	s, q := queue()
	s.settle(q[2], q[1], q[0]) // the last one first: all come back
	s.wantLevel(k(0), 1)
	s, q = queue()
	s.settle(q[2])
	s.settle(q[1])
	s.settle(q[0])
	s.wantLevel(k(0), 1)
	s, q = queue()
	s.settle(q[0], q[1], q[2]) // only the last one has nobody behind it
	s.wantLevel(k(0), 6)
	s, q = queue()
	s.settle(q[1], q[2], q[0])
	s.wantLevel(k(0), 6)

	// Among others, to other buckets.
	s, q = queue()
	up, down := s.charged(charge("up", limit(10, 1), 4), 0, 2), s.charged(charge("down", limit(10, 1), 4), 0, -3)
	gone := leaving(s.gone(charge("gone", limit(10, 1), 4), 0))
	s.settle(up, q[2], gone, down, q[1])
	s.wantLevel(k(0), 3)
	s.wantLevel(up.Charge, 6)
	s.wantLevel(down.Charge, 1)
	s.wantLevel(gone.Charge, 0)
}

// cancelledNothing cancels charges that were not poured, or whose bucket is gone.
func cancelledNothing(tb testing.TB, open Open) {
	s := beginHeld(tb, open, Need{})
	k := func(cost float64) leakybucket.Charge { return inDebt(charge("k", limit(10, 1), cost), 10) }
	full := charge("full", limit(1, 1), 1)
	s.pours(full, 0)
	asked := s.decided(probe(k(4)), want{held, 0}, 0)
	heldBack := leakybucket.Settlement{Charge: k(4), Was: s.decide(charges(k(4), full))[0]}
	s.pours(k(4), 0) // as it would have been
	overflowed := s.decided(k(7), want{refused, 4}, 0)
	for _, was := range []leakybucket.Settlement{asked, heldBack, overflowed} {
		s.settle(leaving(was))
		s.wantLevel(k(0), 4)
	}
	s.bucketsAre(2)
	for _, cost := range []float64{0, 4, 10} {
		s.settle(leaving(s.gone(charge("gone", limit(10, 1), cost), 0)))
		s.wantLevel(charge("gone", limit(10, 1), 0), 0)
	}
	s.bucketsAre(2)
	s.at(-5 * time.Second)
	s.pours(charge("gone", limit(10, 1), 10), 0) // into a bucket that no cancellation has dated
	s.at(-3 * time.Second)
	s.wantLevel(charge("gone", limit(10, 1), 0), 8)
}
