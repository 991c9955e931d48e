package leakybucket

import (
	"fmt"
	"testing"
	"time"
)

// A clock set back by more than has passed of a block leaves an end that it
// cannot have.
func TestABlockFurtherAheadThanItsLengthIsOver(t *testing.T) {
	minute, toEmpty := ladder(time.Minute, time.Hour), ladder()
	for _, test := range []struct {
		block *Ladder
		step  uint8
		ahead float64 // seconds
		over  bool
	}{
		{minute, 0, 60, false},
		{minute, 0, 60.000001, true},
		{minute, 0, 3600, true},
		{minute, 1, 3600, false},
		{minute, 1, 3600.000001, true},
		{toEmpty, 0, 15, false}, // what a full bucket in debt takes to empty
		{toEmpty, 0, 15.000001, true},
		{toEmpty, 0, 1e9, true},
	} {
		c, d := blocking(test.block), Decision{}
		c.Debt = 5
		s := State{BlockedUntil: at(1000 + test.ahead), Step: test.step}
		before, write := s, c.Take(&s, at(1000), &d)
		if d.Fits != test.over || write != test.over {
			t.Errorf("block of step %d of %v, %v s ahead: got fits %v, want %v", test.step, test.block, test.ahead, d.Fits, test.over)
		}
		if !test.over && s != before {
			t.Errorf("block of step %d of %v, %v s ahead: got %+v, want %+v", test.step, test.block, test.ahead, s, before)
		}
	}
}

// The first charge or settlement after it puts an end to it: a refusal, a probe, a settlement.
func TestABlockThatCountsAsOverStaysOverWhenTheClockHasCaughtUp(t *testing.T) {
	ahead := State{Level: 10, At: at(5000), BlockedUntil: at(5060), Step: 1}
	c := blocking(ladder(time.Minute, 2*time.Minute))
	for what, look := range map[string]func(s *State){
		"a cost that can never fit": func(s *State) { runOversize(t, c, s) },
		"a probe": func(s *State) {
			c := c
			c.Probe = true
			runOversize(t, c, s)
		},
		"a settlement":   func(s *State) { *s = (&Settlement{Charge: c}).Apply(*s, at(100)) },
		"a cancellation": func(s *State) { *s = (&Settlement{Charge: c, Cancel: true}).Apply(*s, at(100)) },
	} {
		s := ahead
		look(&s)
		if want := (State{Level: 10, At: at(100)}); s != want {
			t.Errorf("%s: got %+v, want %+v", what, s, want)
		}
		runBlocks(t, c, s, []blockStep{{5000, 10, fitted, 0}, {5000, 10, began, 5060}}) // of the first step
	}
}

// runOversize looks at a bucket and changes as little of it as can be.
func runOversize(t *testing.T, c Charge, s *State) {
	t.Helper()
	var d Decision
	c.Cost = 20
	if write := c.Take(s, at(100), &d); !write || d.Fits || d.Began || d.BlockedUntil != 0 {
		t.Errorf("looking at a bucket of a clock set back: got %+v, to be written %v, want no block and a write", d, write)
	}
}

func TestAChangedLadderCountsFromTheNextBlock(t *testing.T) {
	s := State{Level: 10, At: at(5000), BlockedUntil: at(5000), Step: 2}
	for _, test := range []struct {
		now      *Ladder
		at       float64 // seconds
		step     uint8
		duration float64 // seconds
	}{
		{ladder(time.Minute, time.Hour), 5001, 1, 3600},                                    // shorter: its last step
		{ladder(time.Minute), 5059, 0, 60},                                                 // of one step
		{ladder(time.Second, time.Minute, time.Hour, 24*time.Hour), 8599.999999, 3, 86400}, // longer: the next
		{ladder(time.Second, 2*time.Second, 3*time.Second, time.Hour), 5003, 0, 1},         // the last one's length is what it is now
		{ladder(), 5001, 0, 9},
	} {
		c, d, state := blocking(test.now), Decision{}, s
		state.At = at(test.at)
		if len(test.now.Steps) == 0 {
			state.At = s.At
		}
		c.Cost = 5
		c.Take(&state, at(test.at), &d)
		if want := at(test.at + test.duration); !d.Began || d.BlockedUntil != want || state.Step != test.step {
			t.Errorf("from step 2, under %v: got %+v of step %d, want it until %d of step %d", test.now, d, state.Step, want, test.step)
		}
	}
	// A running block that the new ladder does not know is over.
	runBlocks(t, blocking(ladder(time.Minute)), State{BlockedUntil: at(600)}, []blockStep{{0, 1, fitted, 0}})
	runBlocks(t, blocking(ladder(time.Hour)), State{BlockedUntil: at(600)}, []blockStep{{0, 1, blocked, 600}})
}

func TestPoursSettlementsAndFillsKeepTheBlock(t *testing.T) {
	block := State{Level: 4, BlockedUntil: at(60), Step: 2}
	c := blocking(ladder(time.Minute, 2*time.Minute, 3*time.Minute))
	was := Decision{Fits: true, Poured: true, Level: 3}
	for what, after := range map[string]State{
		"settled upwards":                    (&Settlement{Charge: c, Was: was, Diff: 3}).Apply(block, at(1)),
		"settled downwards":                  (&Settlement{Charge: c, Was: was, Diff: -1}).Apply(block, at(1)),
		"settled by nothing":                 (&Settlement{Charge: c, Was: was}).Apply(block, at(1)),
		"cancelled":                          (&Settlement{Charge: c, Was: was, Cancel: true}).Apply(block, at(1)),
		"cancelled, too late":                (&Settlement{Charge: c, Cancel: true}).Apply(block, at(1)),
		"filled":                             filled(tenSeconds, block, at(1)),
		"taken from by who does not heed it": firstOf(tenSeconds.Take(block, 1, at(1))),
	} {
		if after.BlockedUntil != block.BlockedUntil || after.Step != block.Step {
			t.Errorf("%s: got %+v, want the block of %+v", what, after, block)
		}
	}
	// Above the capacity by a settlement, no block begins.
	if s := (&Settlement{Charge: c, Was: was, Diff: 50}).Apply(State{Level: 4}, at(1)); s.BlockedUntil != 0 {
		t.Errorf("settled above the capacity: got %+v, want no block", s)
	}
}

func firstOf[D any](s State, _ D) State { return s }

func filled(l Limit, s State, now Instant) State {
	s, _, _ = l.Fill(s, 1, now)
	return s
}

func TestALadderIsOfGrowingDurations(t *testing.T) {
	const years20 = 20 * 365 * 24 * time.Hour
	rising := func(n int) *Ladder {
		l := ladder()
		for i := range n {
			l.Steps = append(l.Steps, time.Duration(i+1)*time.Second)
		}
		return l
	}
	for _, test := range []struct {
		ladder *Ladder
		want   string
	}{
		{ladder(), ""},
		{ladder(time.Microsecond), ""},
		{ladder(time.Minute, 10*time.Minute, time.Hour), ""},
		{ladder(years20), ""},
		{rising(100), ""},
		{ladder(0), "invalid block of 0s: want a duration above 0, such as 10m"},
		{ladder(-time.Minute), "invalid block of -1m0s: want a duration above 0, such as 10m"},
		{ladder(999), "invalid block of 999ns: want a duration above 0, such as 10m"},
		{ladder(time.Minute, 0), "invalid block of 0s: want a duration above 0, such as 10m"},
		{ladder(time.Hour, time.Minute), "invalid block: 1m0s stands after 1h0m0s: want each duration longer than the one before"},
		{ladder(time.Minute, time.Hour, time.Hour), "invalid block: 1h0m0s stands after 1h0m0s: want each duration longer than the one before"},
		{ladder(years20 + 1), "invalid block: want durations of at most 20 years"},
		{ladder(time.Minute, 10*years20), "invalid block: want durations of at most 20 years"},
		{rising(101), "invalid block: 101 durations: want at most 100"},
	} {
		wantError(t, fmt.Sprint(test.ladder), test.ladder.Validate(), test.want)
	}
}
