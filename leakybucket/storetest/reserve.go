package storetest

import (
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// reservations take more than the bucket holds, and wait for their turn. The last one is given
// back if its caller leaves before it.
func reservations(tb testing.TB, open Open) {
	s := beginHeld(tb, open, Need{})
	l := limit(2, 1)
	plain := charge("k", l, 1)
	k := plain // as Limiter.Wait makes it
	k.Undelayed, k.Limit.Capacity, k.Debt = l.Capacity-1, 1000, l.Capacity-1000
	var all []leakybucket.Settlement
	for level, want := range []time.Duration{0, 0, time.Second, 2 * time.Second, 3 * time.Second} {
		of := s.charged(k, float64(level), 0)
		if got := of.Charge.Delay(&of.Was); got < want || got > want+time.Millisecond {
			s.Errorf("reservation at level %d: got a delay of %v, want %v", level, got, want)
		}
		of.Cancel = true
		all = append(all, of)
	}
	s.refuses(plain, 5)
	s.at(1900 * time.Millisecond)
	s.settle(all[3]) // there is one behind it
	s.refuses(plain, 3.1)
	s.settle(all[4])
	s.refuses(plain, 2.1)
	s.at(2500 * time.Millisecond)
	s.refuses(plain, 1.5)
	s.at(3 * time.Second)
	s.pours(plain, 1)
}
