package leakybucket

import (
	"math"
	"testing"
	"time"
)

var (
	inf = math.Inf(1)
	nan = math.NaN()
)

// at returns the instant so many seconds after the clock's zero.
func at(seconds float64) Instant { return Instant(math.Round(seconds * 1e6)) }

// near reports whether a level is the one expected, but for rounding. It is
// written so that a NaN is near nothing.
func near(got, want float64) bool { return math.Abs(got-want) <= 1e-9*(1+math.Abs(want)) }

// reference is the limit of the worked example in the design: half a unit leaks
// in a third of a second.
var reference = Limit{Capacity: 3, Leak: 1.5}

type fillStep struct {
	at, cost float64 // seconds, units
	level    float64 // after
	full     bool
}

func runFills(t *testing.T, l Limit, s State, steps []fillStep) {
	t.Helper()
	for i, step := range steps {
		var level float64
		var full bool
		s, level, full = l.Fill(s, step.cost, at(step.at))
		if !near(level, step.level) || full != step.full {
			t.Errorf("step %d: filling %v at %v s: got level %v, full %v, want %v, %v",
				i, step.cost, step.at, level, full, step.level, step.full)
		}
		if kept := l.Level(s, at(step.at)); kept != level {
			t.Errorf("step %d: level kept: got %v, want %v, as the filling says", i, kept, level)
		}
	}
}

func TestFillsFollowTheWorkedExample(t *testing.T) {
	runFills(t, reference, State{}, []fillStep{
		{1.0, 1, 1.00, false},
		{1.7, 2, 2.00, false}, // 1 - 1.05 is below 0
		{2.0, 1, 2.55, false}, // 2 - 0.45 + 1
		{2.3, 2, 3.00, true},  // 2.55 - 0.45 + 2 is above 3
		{4.3, 0, 0.00, false}, // 3 / 1.5 s later
		{6.0, 3, 3.00, true},
	})
}

func TestFillStaysBetweenEmptyAndFull(t *testing.T) {
	runFills(t, Limit{Capacity: 10, Leak: 1}, State{}, []fillStep{
		{0, -1, 0, false},
		{0, 4, 4, false},
		{0, -1.5, 2.5, false},
		{0, -9, 0, false},
		{0, 10, 10, true},
		{0, 0, 10, true},
		{1, 0, 9, false},
		{1, 1e12, 10, true},
		{1, -1e12, 0, false},
		{1, inf, 10, true},
		{1, -inf, 0, false},
		{1, 4, 4, false},
		{1, nan, 4, false}, // pours nothing
		{2, nan, 3, false}, // and stops no leaking
		{3, 0, 2, false},
	})
}

func TestFillDoesNotLowerALevelAboveTheCapacity(t *testing.T) {
	runFills(t, Limit{Capacity: 10, Leak: 1}, State{Level: 15}, []fillStep{
		{0, 0, 15, true},
		{1, 3, 14, true},
		{2, -1, 12, true},
		{2, -3, 9, false},
		{2, 2, 10, true},
	})
}

type takeStep struct {
	at, cost float64 // seconds, units
	before   float64 // level
	fits     bool
}

func runTakes(t *testing.T, l Limit, s State, steps []takeStep) State {
	t.Helper()
	for i, step := range steps {
		before, now := s, at(step.at)
		var got Decision
		s, got = l.Take(s, step.cost, now)
		if !near(got.Level, step.before) || got.Fits != step.fits {
			t.Errorf("step %d: taking %v at %v s: got level %v, fits %v, want %v, %v",
				i, step.cost, step.at, got.Level, got.Fits, step.before, step.fits)
		}
		if got.Poured != got.Fits || got.At != now {
			t.Errorf("step %d: got poured %v at %v, want %v at %v", i, got.Poured, got.At, got.Fits, now)
		}
		if !got.Fits && s != before {
			t.Errorf("step %d: a take that does not fit: got state %v, want %v unchanged", i, s, before)
		}
		if level := l.Level(s, now); got.Fits && level != got.Level+step.cost {
			t.Errorf("step %d: level after: got %v, want %v", i, level, got.Level+step.cost)
		}
	}
	return s
}

func TestTakePoursWhatFitsAndNothingElse(t *testing.T) {
	runTakes(t, reference, State{}, []takeStep{
		{1.0, 1, 0.00, true},
		{1.7, 2, 0.00, true},
		{2.0, 1, 1.55, true}, // 2 - 0.45
		{2.3, 2, 2.10, false},
		{2.3, 0.9, 2.10, true},
		{2.3, 0.1, 3.00, false},
		{4.3, 0, 0.00, true},
		{6.0, 3, 0.00, true},
		{7.0, 1.5, 1.50, true},
	})
}

func TestAnEmptyBucketFitsABurstOfItsCapacityAndThenWhatLeaks(t *testing.T) {
	runTakes(t, Limit{Capacity: 3, Leak: 1}, State{}, []takeStep{
		{0, 1, 0, true},
		{0, 1, 1, true},
		{0, 1, 2, true},
		{0, 1, 3, false},
		{0.999, 1, 2.001, false},
		{1, 1, 2, true},
		{1.5, 1, 2.5, false},
		{2, 1, 2, true},
		{3600, 3, 0, true}, // a long rest saves up no more than the capacity
		{3600, 1, 3, false},
	})
}

// Sums of costs pick up rounding: 0.1 ten times is 0.9999999999999999, and 0.1
// three times is more than 0.3.
func TestAnExactFillFits(t *testing.T) {
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
		l, s, d := Limit{Capacity: test.capacity, Leak: 1e-9}, State{}, Decision{}
		for i := range test.times {
			if s, d = l.Take(s, test.cost, 0); !d.Fits {
				t.Errorf("cost %v, time %d of %d, to capacity %v: got refused at %v, want it to fit",
					test.cost, i+1, test.times, test.capacity, d.Level)
			}
		}
		if _, d = l.Take(s, test.cost, 0); d.Fits {
			t.Errorf("cost %v after %d times to capacity %v: got it to fit, want it refused", test.cost, test.times, test.capacity)
		}
	}
}

func TestABillionthOfTheCapacityIsRounding(t *testing.T) {
	for _, capacity := range []float64{1e-9, 1, 3, 1e12} {
		l := Limit{Capacity: capacity, Leak: 1}
		for _, test := range []struct {
			cost float64
			fits bool
		}{
			{capacity, true},
			{capacity * (1 + 0.9e-9), true},
			{capacity * (1 + 1.1e-9), false},
		} {
			if _, d := l.Take(State{}, test.cost, 0); d.Fits != test.fits {
				t.Errorf("cost %v to an empty bucket of %v: got fits %v, want %v", test.cost, capacity, d.Fits, test.fits)
			}
		}
	}
}

func TestCostZeroFitsUnlessFull(t *testing.T) {
	runTakes(t, Limit{Capacity: 10, Leak: 1}, State{}, []takeStep{
		{0, 0, 0, true},
		{0, 10, 0, true},
		{0, 0, 10, false},
		{0.000001, 0, 9.999999, true},
	})
	runTakes(t, Limit{Capacity: 5, Leak: 1}, State{Level: 10}, []takeStep{
		{0, 0, 10, false},
		{5, 0, 5, false},
		{6, 0, 4, true},
	})
}

func TestCostsThatAreNoAmountDoNotFit(t *testing.T) {
	for _, level := range []float64{0, 4, 10} {
		s := State{Level: level}
		for _, cost := range []float64{10.001, 1e12, inf, -1e-300, -1, -1e12, -inf, nan} {
			runTakes(t, Limit{Capacity: 10, Leak: 1}, s, []takeStep{{0, cost, level, false}, {1, cost, max(0, level-1), false}})
		}
	}
}

// A NaN in a state comes from nowhere, but it must not open the gate.
func TestALevelThatIsNoNumberFitsNothing(t *testing.T) {
	for _, level := range []float64{nan, inf} {
		for _, cost := range []float64{0, 1, 10} {
			if _, d := reference.Take(State{Level: level}, cost, at(1)); d.Fits {
				t.Errorf("cost %v at level %v: got it to fit, want it refused", cost, level)
			}
		}
	}
}

func TestAChangedLimitKeepsTheLevel(t *testing.T) {
	for _, test := range []struct {
		change string
		after  Limit
		steps  []takeStep
	}{
		{"higher", Limit{Capacity: 20, Leak: 1}, []takeStep{{0, 12.1, 8, false}, {0, 12, 8, true}, {5, 0, 15, true}}},
		{"lower", Limit{Capacity: 5, Leak: 1}, []takeStep{{0, 1, 8, false}, {0, 0, 8, false}, {4, 1, 4, true}}},
		{"faster", Limit{Capacity: 10, Leak: 4}, []takeStep{{1, 3, 7, true}, {2, 0, 6, true}}},
		{"slower", Limit{Capacity: 10, Leak: 0.5}, []takeStep{{2, 3, 6, true}, {4, 0, 8, true}}},
	} {
		t.Run(test.change, func(t *testing.T) {
			s := runTakes(t, Limit{Capacity: 10, Leak: 1}, State{}, []takeStep{{0, 8, 0, true}})
			runTakes(t, test.after, s, test.steps)
		})
	}
}

// A bucket is empty at the instant it may be forgotten, and not a microsecond earlier.
func TestForgetIsTheInstantTheBucketIsEmpty(t *testing.T) {
	for _, test := range []struct {
		level, at, forget float64 // units, seconds, seconds
	}{
		{0, 0, 0},
		{0, 7, 7},
		{3, 0, 2},
		{3, 2.3, 4.3},
		{1, 0, 0.666667}, // rounded up
		{6, 1, 5},        // above the capacity
	} {
		s := State{Level: test.level, At: at(test.at)}
		got := reference.EmptyAt(s)
		if got != at(test.forget) {
			t.Errorf("level %v at %v s: got %d, want %d", test.level, test.at, got, at(test.forget))
		}
		if level := reference.Level(s, got); !near(level, 0) {
			t.Errorf("level %v at %v s: got %v left when it may be forgotten, want 0", test.level, test.at, level)
		}
		if level := reference.Level(s, got-1); test.level > 0 && level == 0 {
			t.Errorf("level %v at %v s: got empty a microsecond before it may be forgotten, want some left", test.level, test.at)
		}
	}
}

func TestInstantsAreMicroseconds(t *testing.T) {
	if got, want := Instant(5).Add(1500*time.Nanosecond), Instant(6); got != want {
		t.Errorf("5 µs and 1.5 µs: got %d, want %d", got, want)
	}
	if got, want := at(2).Sub(at(3.5)), -1500*time.Millisecond; got != want {
		t.Errorf("from 3.5 s to 2 s: got %v, want %v", got, want)
	}
}

// enforced returns a charge to a bucket of 10 at 1/s.
func enforced(key string, cost float64) Charge {
	return Charge{Zone: "zone", Key: key, Limit: tenSeconds, Cost: cost}
}
