package storetest

import (
	"math"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

func probePoursNothing(tb testing.TB, open Open) {
	s := beginHeld(tb, open, Need{})
	k := func(cost float64) leakybucket.Charge { return charge("k", limit(10, 1), cost) }
	for range 3 {
		s.probes(k(6), 0)
		s.probes(k(10), 0)
		s.probes(k(0), 0)
	}
	s.refuses(probe(k(10.001)), 0)
	for _, cost := range []float64{-1, math.NaN(), math.Inf(1), math.Inf(-1)} {
		s.refuses(probe(k(cost)), 0)
	}
	s.bucketsAre(0)
	s.at(-5 * time.Second)
	s.pours(k(4), 0) // into a bucket that no probe has dated
	s.at(-3 * time.Second)
	s.probes(k(1), 2)
	s.at(-4 * time.Second)
	s.wantLevel(k(0), 3) // nor dates one that is there
	s.at(time.Second)
	s.pours(k(10), 0)
	s.refuses(probe(k(0)), 10)
	s.refuses(probe(k(1)), 10)
	s.at(2 * time.Second)
	s.probes(k(1), 9)
	s.refuses(probe(k(1.5)), 9)
	s.pours(k(1), 9)
}

// bucketsAre compares how many buckets are kept, if the store can tell.
func (s *subject) bucketsAre(want int) {
	s.Helper()
	if _, ok := s.store.(leakybucket.Counter); !ok {
		return
	}
	if got := s.buckets(); got != want {
		s.Fatalf("buckets: got %d, want %d", got, want)
	}
}

// probeBeside asks for probes together with charges that are to be poured.
func probeBeside(tb testing.TB, open Open) {
	s := beginHeld(tb, open, Need{})
	k := func(cost float64) leakybucket.Charge { return charge("k", limit(10, 1), cost) }
	other := func(cost float64) leakybucket.Charge { return charge("other", limit(10, 1), cost) }
	full := charge("full", limit(1, 1), 1)
	s.pours(full, 0)

	s.take(charges(probe(k(3)), other(1)), want{held, 0}, want{poured, 0})
	s.take(charges(other(1), probe(k(3))), want{poured, 1}, want{held, 0})
	s.take(charges(probe(full), other(1)), want{refused, 1}, want{held, 2})
	s.take(charges(other(1), shadow(k(1)), probe(full)), want{held, 2}, want{held, 0}, want{refused, 1})
	s.take(charges(probe(k(3)), full), want{held, 0}, want{refused, 1})
	s.take(charges(probe(k(3)), probe(other(3))), want{held, 0}, want{held, 2})
	s.take(charges(probe(k(3)), probe(full)), want{held, 0}, want{refused, 1})
	s.wantLevel(k(0), 0)
	s.wantLevel(other(0), 2)
	s.wantLevel(shadow(k(0)), 0)

	// A probe of the same bucket counts with the others, and is not poured.
	s.take(charges(probe(k(6)), k(6)), want{refused, 0}, want{refused, 0})
	s.take(charges(k(6), probe(k(6))), want{refused, 0}, want{refused, 0})
	s.take(charges(probe(k(4)), k(6)), want{held, 0}, want{poured, 0})
	s.wantLevel(k(0), 6)
	s.take(charges(k(2), probe(k(2))), want{poured, 6})
	s.wantLevel(k(0), 8)
	s.take(charges(probe(k(1)), probe(k(1))), want{held, 8}, want{held, 8})
	s.take(charges(probe(k(1)), probe(k(1.5))), want{refused, 8}, want{refused, 8})
	s.wantLevel(k(0), 8)
}

func shadowProbe(tb testing.TB, open Open) {
	s := beginHeld(tb, open, Need{})
	full := shadow(charge("full", limit(1, 1), 1))
	k := charge("k", limit(10, 1), 1)
	s.pours(full, 0)
	s.take(charges(probe(full), k), want{refused, 1}, want{poured, 0})
	s.take(charges(k, shadow(k), probe(full)), want{poured, 1}, want{poured, 0}, want{refused, 1})
	s.take(charges(probe(shadow(k)), k), want{held, 1}, want{poured, 2})
	s.take(charges(probe(k), shadow(k)), want{held, 3}, want{poured, 1})
	s.wantLevel(k, 3)
	s.wantLevel(shadow(k), 2)
}
