package storetest

import (
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// clockLittleBack sets the clock back by less than a full bucket takes to
// drain. Until it has caught up nothing leaks, and then nothing leaks twice.
func clockLittleBack(tb testing.TB, open Open) {
	cost := func(cost float64) leakybucket.Charge { return charge("k", limit(10, 1), cost) }
	for _, back := range []time.Duration{time.Microsecond, time.Second, 10 * time.Second} {
		s := beginHeld(tb, open, Need{})
		s.pours(cost(4), 0)
		s.at(-back)
		s.wantLevel(cost(0), 4)
		s.refuses(cost(7), 4)
		s.pours(cost(1), 4)
		s.at(-back / 2)
		s.pours(cost(1), 5)
		s.at(0)
		s.wantLevel(cost(0), 6)
		s.at(time.Second)
		s.pours(cost(5), 5)
		s.refuses(cost(1), 10)
	}
	for _, apart := range []time.Duration{20 * time.Millisecond, time.Second} { // the clocks of two processes
		k := func(cost float64) leakybucket.Charge { return charge("k", limit(10, 1000), cost) }
		s := beginHeld(tb, open, Need{})
		s.pours(k(10), 0)
		for _, behind := range []time.Duration{apart, 0} {
			s.at(-behind)
			s.refuses(k(1), 10)
		}
	}
}

// clockFarBack sets the clock back by more than a full bucket takes to drain.
// Waiting for it to catch up could take a year, so the next pour is of now.
func clockFarBack(tb testing.TB, open Open) {
	cost := func(cost float64) leakybucket.Charge { return charge("k", limit(10, 1), cost) }
	for _, back := range []time.Duration{10*time.Second + time.Microsecond, time.Hour, 366 * 24 * time.Hour} {
		s := beginHeld(tb, open, Need{})
		s.pours(cost(4), 0)
		s.at(-back)
		s.pours(cost(1), 4)
		s.at(-back + 2*time.Second)
		s.pours(cost(1), 3)
		s.at(-back + 6*time.Second)
		s.pours(cost(10), 0)
	}
}

// clockFarBackFull is the case that would lock people out: in a full bucket
// there is no next pour. It must be free again within capacity/leak.
func clockFarBackFull(tb testing.TB, open Open) {
	cost := func(cost float64) leakybucket.Charge { return charge("k", limit(10, 1), cost) }
	for _, back := range []time.Duration{10*time.Second + time.Microsecond, time.Hour, 366 * 24 * time.Hour} {
		s := beginHeld(tb, open, Need{})
		s.pours(cost(10), 0)
		s.at(-back)
		s.refuses(cost(1), 10)
		s.at(-back + 4*time.Second)
		s.refuses(cost(5), 6)
		s.at(-back + 10*time.Second)
		s.pours(cost(10), 0)
	}
}

// settledClockLittleBack: until the clock has caught up, no time has passed
// since the charge and none for the bucket.
func settledClockLittleBack(tb testing.TB, open Open) {
	k := func(cost float64) leakybucket.Charge { return inDebt(charge("k", limit(10, 1), cost), 10) }
	for _, back := range []time.Duration{time.Microsecond, 3 * time.Second, 20 * time.Second} {
		for _, test := range []struct{ diff, want float64 }{{2, 8}, {50, 20}, {-4, 2}, {-1, 5}} {
			s := beginHeld(tb, open, Need{})
			s.pours(k(2), 0)
			was := s.charged(k(4), 2, test.diff)
			s.at(-back)
			s.settle(was)
			s.wantLevel(k(0), test.want)
			s.at(-back / 2)
			s.wantLevel(k(0), test.want)
			s.at(0)
			s.wantLevel(k(0), test.want)
			s.at(time.Second)
			s.wantLevel(k(0), test.want-1)
		}
	}
}

// settledClockFarBack: the settlement is of now, and so is the bucket.
func settledClockFarBack(tb testing.TB, open Open) {
	k := func(cost float64) leakybucket.Charge { return inDebt(charge("k", limit(10, 1), cost), 10) }
	for _, back := range []time.Duration{20*time.Second + time.Microsecond, time.Hour, 366 * 24 * time.Hour} {
		for _, test := range []struct{ diff, want float64 }{{2, 8}, {50, 20}, {-4, 2}, {-1, 5}} {
			s := beginHeld(tb, open, Need{})
			s.pours(k(2), 0)
			was := s.charged(k(4), 2, test.diff)
			s.at(-back)
			s.settle(was)
			s.at(-back + time.Second)
			s.wantLevel(k(0), test.want-1)
			s.at(-back + 2*time.Second)
			s.wantLevel(k(0), test.want-2)
		}
	}
}

// clockFarBackInDebt sets the clock back with a bucket that is full and in debt
// and takes 20 s to empty: it is far back from there on, for any kind of call.
func clockFarBackInDebt(tb testing.TB, open Open) {
	k := func(cost float64) leakybucket.Charge { return inDebt(charge("k", limit(10, 1), cost), 10) }
	for _, look := range []func(s *subject, was leakybucket.Settlement){
		func(s *subject, _ leakybucket.Settlement) { s.refuses(k(1), 20) },
		func(s *subject, _ leakybucket.Settlement) { s.refuses(probe(k(1)), 20) },
		func(s *subject, _ leakybucket.Settlement) {
			s.take(charges(charge("other", limit(10, 1), 1), k(1)), want{held, 0}, want{refused, 20})
		},
		func(s *subject, was leakybucket.Settlement) { s.settle(was) },
	} {
		for _, back := range []time.Duration{time.Second, 15 * time.Second, 20 * time.Second} {
			s := beginHeld(tb, open, Need{})
			s.settle(s.charged(k(10), 0, 50))
			s.at(-back)
			look(s, s.gone(k(1), 1))
			s.at(-back / 2)
			s.wantLevel(k(0), 20)
			s.at(time.Second)
			s.wantLevel(k(0), 19)
		}
		for _, back := range []time.Duration{20*time.Second + time.Microsecond, time.Hour} {
			s := beginHeld(tb, open, Need{})
			s.settle(s.charged(k(10), 0, 50))
			s.at(-back)
			look(s, s.gone(k(1), 1))
			s.at(-back + 5*time.Second)
			s.wantLevel(k(0), 15)
			s.at(-back + 20*time.Second)
			s.pours(k(10), 0)
		}
	}
}
