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
