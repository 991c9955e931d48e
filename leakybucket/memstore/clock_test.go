package memstore

import (
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// The clock is read before the lock is taken, so another take may come between. A bucket that
// drains within that time must not be filled twice.
func TestATakeThatWaitedForTheLockReadsTheClockAnew(t *testing.T) {
	for _, block := range []*leakybucket.Ladder{nil, {}} {
		instants := []leakybucket.Instant{second + 100, second + 50, second + 101}
		s := New(Options{Clock: func() (now leakybucket.Instant) {
			now, instants = instants[0], instants[1:]
			return now
		}})
		c := charge("k", 1)
		c.Limit, c.Block = leakybucket.Limit{Capacity: 1, Leak: 1e6}, block
		mustTake(t, s, c)
		got := take(t, s, c)[0]
		if want := second + 101; !got.Poured || got.At != want || got.Level != 0 {
			t.Errorf("block %v: got %+v, want it poured into an empty bucket at %v", block, got, want)
		}
		if len(instants) != 0 {
			t.Errorf("block %v: the clock was read %d times less than thrice", block, len(instants))
		}
	}
}
