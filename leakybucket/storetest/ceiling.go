package storetest

import (
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

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

	// Of several charges each is held against its own, with what all ask of the
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

// ceilingBlocks: who would have to wait for too long overflows.
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
