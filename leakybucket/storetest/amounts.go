package storetest

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
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
	for _, test := range []struct {
		capacity, cost float64
		times          int
	}{
		{1, 0.1, 10},
		{0.3, 0.1, 3},
		{1, 1. / 3, 3},
		{3, 3, 1},
		{1000, 0.1, 10_000},
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

func oversizeCost(tb testing.TB, open Open) {
	s := beginHeld(tb, open, Need{})
	c := charge("k", limit(10, 1), 0)
	for _, level := range []float64{0, 4} {
		for _, cost := range []float64{10.001, 20, 1e12} {
			c.Cost = cost
			s.refuses(c, level)
		}
		if level == 0 {
			c.Cost = 4
			s.pours(c, 0)
		}
	}
}

// impossibleCost has amounts that a caller should have kept away. A store must
// survive them, whatever they turn into on their way to another machine.
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

// waitingAsTold holds a store to the truth of Retry-After: who waits so long is
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

func changedLimit(tb testing.TB, open Open) {
	s := beginHeld(tb, open, Need{})
	c := func(capacity, leak, cost float64) leakybucket.Charge { return charge("k", limit(capacity, leak), cost) }
	s.pours(c(10, 1, 8), 0)
	s.refuses(c(5, 1, 1), 8) // a lower capacity refuses, and takes nothing away
	s.wantLevel(c(10, 1, 0), 8)
	s.at(3 * time.Second)
	s.refuses(c(5, 1, 0), 5)
	s.pours(c(20, 1, 12), 5) // a higher one has room at once
	s.at(5 * time.Second)
	s.pours(c(16, 1, 1), 15)
	s.refuses(c(15, 1, 0), 16)
}
