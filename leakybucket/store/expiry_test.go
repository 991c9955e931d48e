package store

import (
	"math"
	"testing"
	"time"

	. "github.com/caddy-throttle/caddy-throttle/leakybucket"
)

func ladder(steps ...time.Duration) *Ladder { return &Ladder{Steps: steps} }

// became is what may become of a charge to a bucket that may be blocked.
type became string

const (
	fitted     became = "poured"
	overflowed became = "refused without a block"
	began      became = "refused, and a block began"
	blocked    became = "refused while a block runs"
)

func becameOf(d Decision) became {
	switch {
	case d.Fits:
		return fitted
	case d.Began:
		return began
	case d.BlockedUntil != 0:
		return blocked
	}
	return overflowed
}

// blocking returns a charge to a bucket of 10 at 1/s.
func blocking(l *Ladder) Charge {
	c := enforced("a", 1)
	c.Block = l
	return c
}

var (
	inf = math.Inf(1)
	nan = math.NaN()
)

func at(seconds float64) Instant { return Instant(math.Round(seconds * 1e6)) }

func TestABlockedBucketIsForgottenAfterItsBlockAndThatStepsLength(t *testing.T) {
	l := ladder(time.Minute, 10*time.Minute)
	for _, test := range []struct {
		block  *Ladder
		state  State
		forget float64 // seconds
	}{
		{l, State{Level: 5, At: at(3)}, 8},
		{l, State{BlockedUntil: at(60)}, 120},
		{l, State{BlockedUntil: at(60), Step: 1}, 660},
		{l, State{BlockedUntil: at(60), Step: 9}, 660}, // of a longer ladder
		{l, State{Level: 10, At: at(700), BlockedUntil: at(600), Step: 0}, 710},
		{l, State{Level: 10, At: at(50), BlockedUntil: at(60), Step: 0}, 120},
		{ladder(), State{Level: 10, BlockedUntil: at(10)}, 10},
		{ladder(), State{BlockedUntil: at(7)}, 7},
		{ladder(), State{Level: 10, At: at(1), BlockedUntil: at(7)}, 11},
		{nil, State{Level: 2, BlockedUntil: at(60), Step: 1}, 2},
	} {
		c := blocking(test.block)
		if got := Expiry(&c, &test.state); got != at(test.forget) {
			t.Errorf("%+v under %v: got it forgotten at %d, want %d", test.state, test.block, got, at(test.forget))
		}
	}
}

// Nobody can tell a bucket that was forgotten when it may be from one that was
// not.
func TestABucketThatMayBeForgottenIsAsGoodAsNew(t *testing.T) {
	for _, l := range []*Ladder{nil, ladder(), ladder(time.Second), ladder(time.Minute, 10*time.Minute)} {
		for step := range uint8(2) {
			kept := State{Level: 10, At: at(100), BlockedUntil: at(130), Step: step}
			c := blocking(l)
			now, fresh := Expiry(&c, &kept), State{}
			for _, cost := range []float64{10, 10, 0} {
				var got, want Decision
				c.Cost = cost
				c.Take(&kept, now, &got)
				c.Take(&fresh, now, &want)
				if got != want {
					t.Errorf("cost %v to %v when it may be forgotten: got %+v, want %+v, as a new one says", cost, l, got, want)
				}
			}
		}
	}
}
