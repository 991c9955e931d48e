package storetest

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

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
		s.refuses(k(9), 3+test.cost) // what is refused or asked is no pour
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

// cancelledTooLate: whoever came since knows when their turn is, so the place
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

// cancelledNothing cancels what was not poured, or what is not there any more.
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
