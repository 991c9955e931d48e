package leakybucket

import (
	"fmt"
	"testing"
	"time"
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

type blockStep struct {
	at, cost float64 // seconds, units
	became   became
	until    float64 // seconds; the end of the block that runs
}

// runBlocks lets c take each step's cost, and watches what must hold of every
// take: that it says whether there is something to write, and that what begins
// no block and is not poured leaves all as it was.
func runBlocks(t *testing.T, c Charge, s State, steps []blockStep) State {
	t.Helper()
	for i, step := range steps {
		before, d := s, Decision{Fits: true, Poured: true, Level: nan, At: -1, BlockedUntil: -1, Began: true}
		c.Cost = step.cost
		write := c.Take(&s, at(step.at), &d)
		what := fmt.Sprintf("step %d: cost %v at %v s", i, step.cost, step.at)
		if got := becameOf(d); got != step.became || d.BlockedUntil != at(step.until) {
			t.Errorf("%s: got it %s, blocked until %d, want it %s, until %d", what, got, d.BlockedUntil, step.became, at(step.until))
		}
		if d.Poured != (d.Fits && !c.Probe) || d.At != at(step.at) || !near(d.Level, c.Limit.Level(before, at(step.at))) {
			t.Errorf("%s: got %+v, want it poured if it fits, and its level and instant", what, d)
		}
		if want := d.Poured || s != before; write != want {
			t.Errorf("%s: got %v for whether %+v must be written over %+v, want %v", what, write, s, before, want)
		}
		if !d.Poured && !d.Began && s != before {
			t.Errorf("%s: got state %+v, want %+v unchanged", what, s, before)
		}
		if d.Began && (s.Level != d.Level || s.At != max(before.At, d.At) || s.Leak != c.Limit.Leak) {
			t.Errorf("%s: got state %+v, want it up to date when a block begins", what, s)
		}
		if d.BlockedUntil != 0 && d.Step != s.Step || d.BlockedUntil == 0 && d.Step != 0 {
			t.Errorf("%s: got step %d, want that of the block in %+v", what, d.Step, s)
		}
	}
	return s
}

// blocking returns a charge to a bucket of 10 at 1/s.
func blocking(l *Ladder) Charge {
	c := enforced("a", 1)
	c.Block = l
	return c
}

func TestAnOverflowBeginsABlockThatNothingMakesLonger(t *testing.T) {
	runBlocks(t, blocking(ladder(time.Minute)), State{}, []blockStep{
		{0, 9, fitted, 0},
		{0, 2, began, 60},
		{0, 2, blocked, 60},
		{1, 1, blocked, 60}, // would fit
		{30, 0, blocked, 60},
		{59, 20, blocked, 60},
		{59.999999, 1, blocked, 60},
		{60, 10, fitted, 0}, // over at its end
	})
}

func TestAChargeThatCanNeverFitBeginsNoBlock(t *testing.T) {
	for _, cost := range []float64{10.001, 1e12, inf, -1, -1e-300, -inf, nan} {
		for _, level := range []float64{0, 4, 10, 15} {
			for _, l := range []*Ladder{ladder(time.Minute), ladder()} {
				runBlocks(t, blocking(l), State{Level: level}, []blockStep{{0, cost, overflowed, 0}})
			}
		}
		// It is told of one that runs.
		runBlocks(t, blocking(ladder(time.Minute)), State{BlockedUntil: at(60)}, []blockStep{{0, cost, blocked, 60}})
	}
}

func TestAProbeBeginsABlock(t *testing.T) {
	c := blocking(ladder(time.Minute, time.Hour))
	c.Probe = true
	s := runBlocks(t, c, State{Level: 10}, []blockStep{
		{0, 1, began, 60},
		{5, 1, blocked, 60},
		{60, 1, fitted, 0},
	})
	if want := (State{Level: 10, Leak: 1, BlockedUntil: at(60)}); s != want {
		t.Errorf("after probes: got %+v, want %+v", s, want)
	}
	s.Level = 100
	runBlocks(t, c, s, []blockStep{{61, 1, began, 3661}})
}

func TestALadderClimbsWhileBlocksFollowEachOtherSoon(t *testing.T) {
	l := ladder(time.Minute, 10*time.Minute, time.Hour)
	for _, test := range []struct {
		step  uint8
		pause float64 // seconds since the last block ended
		want  uint8
	}{
		{0, 0, 1}, // in the very instant it is over
		{0, 30, 1},
		{0, 59.999999, 1},
		{0, 60, 0}, // from there on it may be forgotten
		{0, 60.000001, 0},
		{0, 1e9, 0},
		{1, 60, 2},
		{1, 599.999999, 2},
		{1, 600, 0},
		{2, 600, 2}, // there is no higher one
		{2, 3599.999999, 2},
		{2, 3600, 0},
	} {
		ended := at(1000)
		now := ended + at(test.pause)
		c, d := blocking(l), Decision{}
		s := State{Level: 10, At: now, BlockedUntil: ended, Step: test.step}
		c.Take(&s, now, &d)
		want := State{Level: 10, At: now, Leak: 1, BlockedUntil: now.Add(l.Steps[test.want]), Step: test.want}
		if s != want || !d.Began || d.BlockedUntil != s.BlockedUntil {
			t.Errorf("overflow %v s after a block of step %d: got %+v and %+v, want %+v", test.pause, test.step, s, d, want)
		}
	}
}

// Followed with pencil and paper: block 1m 10m, in a bucket that is empty after
// each block.
func TestBlocksFollowTheLadder(t *testing.T) {
	runBlocks(t, blocking(ladder(time.Minute, 10*time.Minute)), State{}, []blockStep{
		{0, 10, fitted, 0},
		{0, 1, began, 60},
		{60, 10, fitted, 0},
		{65, 10, began, 665},
		{300, 1, blocked, 665},
		{1000, 10, fitted, 0},
		{1001, 10, began, 1601},
		{2300, 10, fitted, 0},
		{2300, 10, began, 2360}, // 699 s after the last
		{2400, 10, fitted, 0},
		{2401, 10, began, 3001},
	})
}

func TestABlockWithoutStepsLastsUntilTheBucketIsEmpty(t *testing.T) {
	c := blocking(ladder())
	runBlocks(t, c, State{}, []blockStep{
		{0, 7, fitted, 0},
		{2, 6, began, 7},
		{6.999999, 1, blocked, 7},
		{7, 10, fitted, 0},
		{7, 1, began, 17},
		{17, 10, fitted, 0},
		{18.5, 10, began, 27}, // there is no ladder to climb
		{27, 10, fitted, 0},
		{27, 10, began, 37},
	})
	c.Limit.Leak = 3
	runBlocks(t, c, State{Level: 10}, []blockStep{{0, 1, began, 3.333334}}) // rounded up
}

func TestABlockWithoutStepsEndsWhenABucketInDebtWouldBeEmpty(t *testing.T) {
	for _, test := range []struct{ level, debt, until float64 }{
		{15, 10, 15},
		{20, 10, 20},
		{25, 10, 20}, // a former limit allowed it
		{1e12, 0, 10},
	} {
		c := blocking(ladder())
		c.Debt = test.debt
		runBlocks(t, c, State{Level: test.level}, []blockStep{{0, 1, began, test.until}})
	}
}

func TestWithoutABlockNoneIsBegunOrHeeded(t *testing.T) {
	s := State{BlockedUntil: at(60), Step: 1}
	s = runBlocks(t, blocking(nil), s, []blockStep{
		{0, 10, fitted, 0},
		{0, 1, overflowed, 0},
		{5, 5, fitted, 0},
	})
	if want := (State{Level: 10, At: at(5), Leak: 1, BlockedUntil: at(60), Step: 1}); s != want {
		t.Errorf("state: got %+v, want %+v, whose block others heed", s, want)
	}
}
