package storetest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

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

	// Each from what the one before has left.
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

func shadowSettled(tb testing.TB, open Open) {
	s := beginHeld(tb, open, Need{})
	k := func(cost float64) leakybucket.Charge { return inDebt(charge("k", limit(10, 1), cost), 10) }
	enforced, shadowed := s.charged(k(4), 0, 3), s.charged(shadow(k(6)), 0, 9)
	s.settle(shadowed)
	s.wantLevel(k(0), 4)
	s.wantLevel(shadow(k(0)), 15)
	s.settle(enforced)
	s.wantLevel(k(0), 7)
	s.wantLevel(shadow(k(0)), 15)
	shadowed.Diff, enforced.Diff = -6, -4
	s.settle(shadowed)
	s.wantLevel(k(0), 7)
	s.wantLevel(shadow(k(0)), 9)
	s.settle(enforced)
	s.wantLevel(k(0), 3)
	s.wantLevel(shadow(k(0)), 9)

	// A shadow charge that overflows is not poured, and owes all the same.
	s.settle(s.decided(shadow(k(2)), want{refused, 9}, -2), s.decided(shadow(k(3)), want{refused, 9}, 2))
	s.wantLevel(shadow(k(0)), 11)
	s.at(5 * time.Second)
	s.settle(s.gone(shadow(charge("gone", limit(10, 1), 1)), 2))
	s.wantLevel(shadow(charge("gone", limit(10, 1), 0)), 2)
	s.wantLevel(charge("gone", limit(10, 1), 0), 0)
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
