package storetest

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// workedExample can be followed with pencil and paper.
func workedExample(tb testing.TB, open Open) {
	s := beginHeld(tb, open, Need{})
	cost := func(cost float64) leakybucket.Charge { return charge("k", limit(3, 1.5), cost) }
	s.at(1000 * time.Millisecond)
	s.pours(cost(1), 0)
	s.at(1700 * time.Millisecond)
	s.pours(cost(2), 0)
	s.at(2000 * time.Millisecond)
	s.pours(cost(1), 1.55)
	s.at(2300 * time.Millisecond)
	s.refuses(cost(2), 2.1)
	s.pours(cost(0.9), 2.1)
	s.refuses(cost(0.1), 3)
	s.at(4300 * time.Millisecond)
	s.pours(cost(0), 0)
	s.at(6000 * time.Millisecond)
	s.pours(cost(3), 0)
	s.at(7000 * time.Millisecond)
	s.wantLevel(cost(0), 1.5)
}

// exactFill would fail if a sum of costs were held against its own rounding.
func exactFill(tb testing.TB, open Open) {
	many := check.OrShort(10_000, 1000)
	for _, test := range []struct {
		capacity, cost float64
		times          int
	}{
		{1, 0.1, 10},
		{0.3, 0.1, 3},
		{1, 1. / 3, 3},
		{3, 3, 1},
		{0.1 * float64(many), 0.1, many},
		{1e12, 1e12 / 7, 7},
		{1e-9, 1e-9 / 7, 7},
	} {
		s := beginHeld(tb, open, Need{})
		c := charge("k", limit(test.capacity, test.capacity/100), test.cost)
		for i := range test.times {
			s.pours(c, float64(i)*test.cost)
		}
		s.refuses(c, test.capacity)
		c.Cost = test.capacity * 1e-6
		s.refuses(c, test.capacity)
	}
}

func zeroCost(tb testing.TB, open Open) {
	s := beginHeld(tb, open, Need{})
	cost := func(cost float64) leakybucket.Charge { return charge("k", limit(10, 1), cost) }
	s.pours(cost(0), 0)
	s.pours(cost(9.5), 0)
	s.pours(cost(0), 9.5)
	s.pours(cost(0.5), 9.5)
	s.refuses(cost(0), 10)
	s.at(time.Millisecond)
	s.pours(cost(0), 9.999)
	s.wantLevel(cost(0), 9.999)
}

// impossibleCost has amounts that a caller should have kept away. A store must
// survive them, also after they were encoded for another machine.
func impossibleCost(tb testing.TB, open Open) {
	s := beginHeld(tb, open, Need{})
	full := limit(10, 1)
	s.pours(charge("k", full, 4), 0)
	for _, cost := range []float64{-1, -1e-9, -1e12, math.Inf(-1), math.NaN(), math.Inf(1)} {
		bad := charge("k", full, cost)
		s.refuses(bad, 4)
		s.take(charges(charge("beside", full, 1), bad), want{held, 0}, want{refused, 4})
		s.take(charges(charge("k", full, 7), bad), want{refused, 4}, want{refused, 4}) // makes no room
		s.take(charges(shadow(bad), charge("k", full, 0)), want{refused, 0}, want{poured, 4})
		s.wantLevel(charge("k", full, 0), 4)
		s.wantLevel(charge("beside", full, 0), 0)
	}
}

// waitingAsTold holds a store to the truth of Retry-After: a client that waits so long is
// admitted, and a millisecond less is too little.
func waitingAsTold(tb testing.TB, open Open) {
	s := beginHeld(tb, open, Need{})
	rng := rand.New(rand.NewPCG(3, 0))
	elapsed := time.Duration(0)
	for i := range 200 {
		capacity := math.Exp(rng.Float64()*10) / 10
		l := limit(capacity, capacity/(1+100*rng.Float64()))
		c := charge("k"+string(rune('a'+i%26)), l, 0)
		c.Zone = "zone" + string(rune('a'+i/26)) // a bucket of its own each time
		c.Cost = capacity * (0.1 + 0.9*rng.Float64())
		s.pours(c, 0)
		filled := c.Cost
		c.Cost = capacity*1.05 - filled + rng.Float64()*(filled-0.1*capacity)
		s.refuses(c, filled)

		wait := l.TimeToFit(filled, c.Cost)
		s.at(elapsed + wait - time.Millisecond)
		s.refuses(c, filled-l.Leak*(wait-time.Millisecond).Seconds())
		s.at(elapsed + wait)
		s.pours(c, filled-l.Leak*wait.Seconds())
		elapsed += wait
	}
}

// delays takes charges in one instant, whose waits are known by the levels.
func delays(tb testing.TB, open Open) {
	for _, test := range []struct {
		limit     leakybucket.Limit
		undelayed float64
		longest   time.Duration
		waits     []time.Duration // of those that fit
	}{
		{limit(6, 1), 0, time.Hour, []time.Duration{0, 1e9, 2e9, 3e9, 4e9, 5e9}},
		{limit(5, 10), 0, time.Hour, []time.Duration{0, 1e8, 2e8, 3e8, 4e8}},
		{limit(6, 1), 2, time.Hour, []time.Duration{0, 0, 0, 1e9, 2e9, 3e9}},
		{limit(6, 1), 0, 2 * time.Second, []time.Duration{0, 1e9, 2e9}},
		{limit(6, 1), 2, 1500 * time.Millisecond, []time.Duration{0, 0, 0, 1e9}},
		{limit(5, 10), 0, 250 * time.Millisecond, []time.Duration{0, 1e8, 2e8}},
	} {
		s := beginHeld(tb, open, Need{})
		c := below(charge("k", test.limit, 1), test.limit.Ceiling(1, test.undelayed, test.longest))
		for i, wait := range test.waits {
			d := s.decide(charges(c))[0]
			got := test.limit.Delay(d.Level, test.undelayed)
			if !d.Poured || got < wait-2*us || got > wait+2*us {
				s.Fatalf("charge %d, %s: got poured %v after a wait of %v, want it after %v", i+1, describe(c), d.Poured, got, wait)
			}
		}
		s.refuses(c, float64(len(test.waits)))
		s.at(time.Duration(1e9 / test.limit.Leak))
		s.pours(c, float64(len(test.waits)-1))
		s.refuses(c, float64(len(test.waits)))
	}
}

func ceilings(tb testing.TB, open Open) {
	k := func(cost, ceiling float64) leakybucket.Charge { return below(charge("k", limit(10, 1), cost), ceiling) }
	s := beginHeld(tb, open, Need{})
	s.pours(k(2, 4), 0)
	s.refuses(k(2.5, 4), 2)
	s.refuses(probe(k(2.5, 4)), 2)
	s.probes(k(2, 4), 2)
	s.pours(k(2, 4), 2) // exactly
	s.refuses(k(0, 4), 4)
	s.pours(k(0, 4.5), 4)
	s.pours(k(1, 5), 4) // each charge has its own
	s.refuses(k(1, 5), 5)
	s.refuses(k(5.5, 20), 5) // above the capacity it is none
	s.pours(k(4, 20), 5)
	s.pours(k(1, 0), 9) // and 0 is none
	s.refuses(k(1, 5), 10)
	s.at(6 * time.Second)
	s.refuses(k(1.5, 5), 4)
	s.pours(k(1, 5), 4)

	// Each of several charges is held against its own, with the sum of all to the
	// bucket.
	other := charge("other", limit(10, 1), 1)
	s.take(charges(k(1, 6), other), want{poured, 5}, want{poured, 0})
	s.take(charges(other, k(1, 6)), want{held, 1}, want{refused, 6})
	s.take(charges(k(1, 7), k(1, 0)), want{refused, 6}, want{held, 6})
	s.take(charges(k(1, 8), k(1, 0), shadow(k(3, 2))), want{poured, 6}, want{poured, 7}, want{refused, 0})
	s.wantLevel(k(0, 0), 8)

	// It is nothing to a settlement.
	settled := inDebt(below(charge("settled", limit(10, 1), 2), 3), 5)
	for diff, level := range map[float64]float64{4: 6, 50: 15} {
		s := beginHeld(tb, open, Need{})
		s.settle(s.charged(settled, 0, diff))
		s.wantLevel(settled, level)
	}
}

// ceilingBlocks: a charge that would have to wait for too long overflows.
func ceilingBlocks(tb testing.TB, open Open) {
	s := beginHeld(tb, open, Need{})
	k := func(cost, ceiling float64) leakybucket.Charge { return below(costing(guarded("k"), cost), ceiling) }
	s.pours(k(4, 4), 0)
	s.refuses(k(11, 4), 4) // above the capacity it never fits
	s.begins(k(1, 4), 4, time.Minute)
	s.blocked(k(1, 0), 4, time.Minute) // with a ceiling or not
	s.at(time.Minute)
	s.begins(k(3, 2), 0, time.Minute+time.Hour) // from an empty bucket too
	s.blocked(k(1, 2), 0, time.Minute+time.Hour)
}
