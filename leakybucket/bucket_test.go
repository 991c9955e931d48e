package leakybucket

import (
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
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
		check.That(t, near(level, step.level) && full == step.full, "step %d: filling %v at %v s: got level %v, full %v, want %v, %v", i, step.cost, step.at, level, full, step.level, step.full)
		check.Equal(t, l.Level(s, at(step.at)), level, "step %d: the level kept, want it as the filling says", i)
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

// Until a clock that was set back has caught up nothing leaks. One that was set far back counts
// from where it is: waiting for it could take a year.
func TestFillsWhileTheClockIsBack(t *testing.T) {
	runFills(t, tenSeconds, State{Level: 4, At: at(100)}, []fillStep{{90, 1, 5, false}, {95, 1, 6, false}, {101, 0, 5, false}})
	runFills(t, tenSeconds, State{Level: 4, At: at(110.000001)}, []fillStep{{100, 1, 5, false}, {102, 1, 4, false}})
}

// A fill keeps the block of a bucket, writes its leak, and leaves no room for a cancellation.
func TestAFillIsAPour(t *testing.T) {
	c := enforced("a", 5)
	c.Limit.Leak = 2
	var was Decision
	s := State{Level: 3, At: at(100), BlockedUntil: at(90), Step: 2}
	c.Take(&s, at(100), &was)
	s, _, _ = tenSeconds.Fill(s, 1, at(101))
	check.Equal(t, s, (State{Level: 7, At: at(101), Leak: 1, BlockedUntil: at(90), Step: 2}), "filled")
	check.Equal(t, (&Settlement{Charge: c, Was: was, Cancel: true}).Apply(s, at(101)), s, "cancelled after a fill")
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
			_, d := l.Take(State{}, test.cost, 0)
			check.That(t, d.Fits == test.fits, "cost %v to an empty bucket of %v: got fits %v, want %v", test.cost, capacity, d.Fits, test.fits)
		}
	}
}

// A NaN in a state comes from nowhere, but it must not open the gate.
func TestALevelThatIsNoNumberFitsNothing(t *testing.T) {
	for _, level := range []float64{nan, inf} {
		for _, cost := range []float64{0, 1, 10} {
			_, d := reference.Take(State{Level: level}, cost, at(1))
			check.That(t, !d.Fits, "cost %v at level %v: got it to fit, want it refused", cost, level)
		}
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
		check.Equal(t, got, at(test.forget), "level %v at %v s", test.level, test.at)
		level := reference.Level(s, got)
		check.That(t, near(level, 0), "level %v at %v s: got %v left when it may be forgotten, want 0", test.level, test.at, level)
		if level := reference.Level(s, got-1); test.level > 0 && level == 0 {
			t.Errorf("level %v at %v s: got empty a microsecond before it may be forgotten, want some left", test.level, test.at)
		}
	}
}

func TestInstantsAreMicroseconds(t *testing.T) {
	for d, want := range map[time.Duration]Instant{0: 10, 1500: 11, -1: 9, -1000: 9, -1500: 8, -2000: 8, 1999: 11} {
		check.Equal(t, Instant(10).Add(d), want, "10 µs and %v", d)
	}
	check.Equal(t, at(2).Sub(at(3.5)), -1500*time.Millisecond, "from 3.5 s to 2 s")
}

// enforced returns a charge to a bucket of 10 at 1/s.
func enforced(key string, cost float64) Charge {
	return Charge{Zone: "zone", Key: key, Limit: tenSeconds, Cost: cost}
}

// tenSeconds is how long a full bucket of this limit takes to drain.
var tenSeconds = Limit{Capacity: 10, Leak: 1}

func newBucket(t *testing.T, l Limit) *Bucket {
	t.Helper()
	b, err := NewBucket(l)
	if err != nil {
		t.Fatalf("new bucket of %s: %v", describe(l), err)
	}
	return b
}

func TestABucketNeedsAValidLimit(t *testing.T) {
	for _, l := range []Limit{{}, {1, 0}, {nan, 1}, {1e12, 1e-9}} {
		b, err := NewBucket(l)
		if b != nil || err == nil {
			t.Errorf("new bucket of %s: got %v, %v, want an error", describe(l), b, err)
		}
	}
}

func TestABucketLivesByTheProcessClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBucket(t, reference)
		d := b.Take(2)
		check.That(t, d.Fits && d.Level == 2 && d.Remaining == 1 && d.RetryAfter == 0, "first take: got %+v, want it poured into an empty bucket", d)
		<-time.After(time.Second)
		check.Equal(t, b.Level(), 0.5, "level after a second")
		for cost, want := range map[float64]bool{0: true, 2.5: true, 2.6: false, 4: false, -1: false, nan: false} {
			check.Equal(t, b.Fits(cost), want, "cost %v at level 0.5: fits", cost)
		}
		check.Equal(t, b.Level(), 0.5, "level after asking")
		level, full := b.Fill(9)
		check.That(t, level == 3 && full, "fill: got %+v, want full at 3", level)
		d = b.Take(1)
		check.That(t, !d.Fits && d.Level == 3 && d.at == at(1) && d.RetryAfter == reference.TimeToFit(3, 1), "take from a full bucket: got %+v, want refused at 3 after a second", d)
		<-time.After(reference.TimeToEmpty(3))
		check.Equal(t, b.Level(), 0, "level after the time to empty")
	})
}

// The clock is read with the lock held: if it were not, a decision could be
// made at an instant before the state it is made on.
func TestDecisionsAreMadeInTheOrderOfTheirInstants(t *testing.T) {
	l := Limit{Capacity: 100, Leak: 1e6} // a unit a microsecond
	b := newBucket(t, l)
	const workers, takes = 8, 5000
	var all [workers][]Result
	var crowd sync.WaitGroup
	for w := range workers {
		crowd.Go(func() {
			for range takes {
				all[w] = append(all[w], b.Take(7))
			}
		})
	}
	crowd.Wait()
	var first, last Instant = 1 << 62, 0
	poured := 0.0
	for w := range all {
		for i, d := range all[w] {
			if i > 0 && d.at < all[w][i-1].at {
				t.Fatalf("worker %d, take %d: got it decided at %d, before the one before it at %d", w, i, d.at, all[w][i-1].at)
			}
			if d.Fits {
				first, last, poured = min(first, d.at), max(last, d.at), poured+7
			}
		}
	}
	bound := l.Capacity*(1+1e-9) + l.Leak*(seconds(last-first)+1e-6)
	check.That(t, poured <= bound, "poured: got %v in %d µs, want at most %v", poured, last-first, bound)
}
