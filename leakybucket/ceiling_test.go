package leakybucket

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/testseed"
)

// queue takes n charges of 1 in one instant, each under the ceiling of a longest
// wait, and returns how long those wait that fit.
func queue(l Limit, undelayed float64, longest time.Duration, n int) (waits []time.Duration, refused int) {
	c, s, d := Charge{Limit: l, Cost: 1, Ceiling: l.Ceiling(1, undelayed, longest)}, State{}, Decision{}
	for range n {
		if c.Take(&s, at(100), &d); d.Fits {
			waits = append(waits, l.Delay(d.Level, undelayed))
		} else {
			refused++
		}
	}
	return waits, refused
}

func TestADelayIsUntilWhatIsAheadHasLeaked(t *testing.T) {
	const s, ms = time.Second, time.Millisecond
	for _, test := range []struct {
		limit     Limit
		undelayed float64
		longest   time.Duration
		waits     []time.Duration
	}{
		{Limit{6, 1}, 0, time.Hour, []time.Duration{0, 1 * s, 2 * s, 3 * s, 4 * s, 5 * s}},
		{Limit{5, 10}, 0, time.Hour, []time.Duration{0, 100 * ms, 200 * ms, 300 * ms, 400 * ms}},
		{Limit{6, 1}, 2, time.Hour, []time.Duration{0, 0, 0, 1 * s, 2 * s, 3 * s}},
		{Limit{6, 1}, 9, time.Hour, []time.Duration{0, 0, 0, 0, 0, 0}},
		{Limit{6, 1}, 0, 2 * s, []time.Duration{0, 1 * s, 2 * s}},
		{Limit{6, 1}, 0, 2500 * ms, []time.Duration{0, 1 * s, 2 * s}},
		{Limit{6, 1}, 2, 2 * s, []time.Duration{0, 0, 0, 1 * s, 2 * s}},
		{Limit{6, 1}, 0, 0, []time.Duration{0}},
		{Limit{6, 1}, 3, 0, []time.Duration{0, 0, 0, 0}},
		{Limit{5, 10}, 0, 250 * ms, []time.Duration{0, 100 * ms, 200 * ms}},
		{Limit{3, 3}, 0, time.Hour, []time.Duration{0, 333_334 * time.Microsecond, 666_667 * time.Microsecond}}, // rounded up
	} {
		waits, refused := queue(test.limit, test.undelayed, test.longest, 10)
		if !slices.Equal(waits, test.waits) || refused != 10-len(test.waits) {
			t.Errorf("%s, %v undelayed, at most %v: got waits %v and %d refused, want %v", describe(test.limit), test.undelayed, test.longest, waits, refused, test.waits)
		}
	}
}

func TestACeilingLeavesRoomForTheCostAboveTheLongestWait(t *testing.T) {
	for _, test := range []struct {
		cost, undelayed float64
		longest         time.Duration
		want            float64
	}{
		{1, 0, 3 * time.Second, 4},
		{2, 0, 3 * time.Second, 5},
		{2, 1, 3 * time.Second, 6},
		{2, 1, 1500 * time.Millisecond, 4.5},
		{0, 1, 3 * time.Second, 4},
		{5, 0, 0, 5},
		{5, 4, 3 * time.Second, 10}, // no higher than the capacity
		{1, 0, time.Hour, 10},
		{20, 0, 0, 10},
	} {
		if got := tenSeconds.Ceiling(test.cost, test.undelayed, test.longest); got != test.want {
			t.Errorf("cost %v, %v undelayed, at most %v: got %v, want %v", test.cost, test.undelayed, test.longest, got, test.want)
		}
	}
}

// A charge that fits waits no longer than the longest, but for what rounding allows, and
// who does not would have had to.
func TestAChargeThatFitsBeneathACeilingWaitsNoLongerThanItSays(t *testing.T) {
	seed := testseed.Of(t)
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	fits := 0
	for range 100_000 {
		l := randomLimit(rng)
		longest := time.Duration(l.Capacity / l.Leak * rng.Float64() * 1e9).Truncate(time.Microsecond)
		undelayed := l.Capacity * rng.Float64() * rng.Float64()
		c := Charge{Limit: l, Cost: l.Capacity * rng.Float64() * rng.Float64()}
		c.Ceiling = l.Ceiling(c.Cost, undelayed, longest)
		s, d := State{Level: l.Capacity * rng.Float64()}, Decision{}
		c.Take(&s, 0, &d)
		wait, slack := l.Delay(d.Level, undelayed), 2*time.Microsecond+time.Duration(4e9*tolerance*l.Capacity/l.Leak)
		if d.Fits {
			fits++
		}
		if d.Fits && wait > longest+slack {
			t.Fatalf("%s, ceiling %v: got a wait of %v, want at most %v", describe(l), c.Ceiling, wait, longest)
		}
		if !d.Fits && d.Level+c.Cost < l.Capacity && wait < longest-slack {
			t.Fatalf("%s, ceiling %v: got cost %v refused at %v, for which it would wait %v of %v", describe(l), c.Ceiling, c.Cost, d.Level, wait, longest)
		}
	}
	if fits < 10_000 || fits > 90_000 {
		t.Errorf("charges that fit: got %d of 100000, want some and not all", fits)
	}
}

func TestACeilingDecidesWhetherAChargeFits(t *testing.T) {
	for _, test := range []struct {
		ceiling, level, cost float64
		fits                 bool
	}{
		{4, 2, 2, true}, // exactly
		{4, 2, 2.001, false},
		{4, 4, 0, false}, // as for a capacity
		{4, 3.9, 0, true},
		{0, 2, 8, true}, // none
		{0, 2, 8.1, false},
		{20, 2, 8, true}, // no more than the capacity
		{20, 2, 8.1, false},
		{-1, 2, 8, true},
		{inf, 2, 8, true},
		{1e-9, 0, 1, false},
	} {
		c := enforced("a", test.cost)
		c.Ceiling = test.ceiling
		state, d := State{Level: test.level}, Decision{}
		c.Take(&state, 0, &d)
		if want := map[bool]float64{true: test.level + test.cost, false: test.level}[test.fits]; d.Fits != test.fits || d.Poured != test.fits || state.Level != want {
			t.Errorf("%+v: got %+v and level %v, want %v", test, d, state.Level, want)
		}
	}
}

func TestACeilingIsNothingToASettlement(t *testing.T) {
	c := enforced("a", 2)
	c.Ceiling, c.Debt = 3, 5
	for diff, want := range map[float64]float64{3: 5, 8: 10, 50: 15, -1: 1} {
		s := Settlement{Charge: c, Was: Decision{Fits: true, Poured: true}, Diff: diff}
		if got := s.Apply(State{Level: 2}, 0).Level; got != want {
			t.Errorf("settled by %v beneath a ceiling of 3: got level %v, want %v", diff, got, want)
		}
	}
}

func TestAnOverflowOfACeilingBeginsABlock(t *testing.T) {
	c := blocking(ladder(time.Minute))
	c.Ceiling = 4
	runBlocks(t, c, State{}, []blockStep{
		{0, 4, fitted, 0},
		{0, 11, overflowed, 0}, // what is above the capacity begins none
		{0, 1, began, 60},
	})
	c.Ceiling = 0.5 // beneath the cost it overflows, and is not oversize
	runBlocks(t, c, State{}, []blockStep{{0, 1, began, 60}})
}

func TestBelowIsTheLimitWithNoMoreThanTheCeiling(t *testing.T) {
	for ceiling, want := range map[float64]float64{0: 10, 4: 4, 10: 10, 11: 10, inf: 10, -1: 10, nan: 10} {
		if got := tenSeconds.WithCeiling(ceiling); got != (Limit{Capacity: want, Leak: 1}) {
			t.Errorf("below %v: got %s, want a capacity of %v", ceiling, describe(got), want)
		}
	}
	// So it knows how long a charge with a ceiling waits until it fits.
	if got := tenSeconds.WithCeiling(4).TimeToFit(5, 2); got != 3*time.Second {
		t.Errorf("time to fit 2 above 5 below 4: got %v, want 3s", got)
	}
}
