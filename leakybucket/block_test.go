package leakybucket

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/testseed"
)

func ladder(steps ...time.Duration) *Ladder { return &Ladder{Steps: steps} }

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
		check.Error(t, test.ladder.Validate(), test.want, "%s", fmt.Sprint(test.ladder))
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
	check.That(t, fits >= 10_000 && fits <= 90_000, "charges that fit: got %d of 100000, want some and not all", fits)
}

func TestBelowIsTheLimitWithNoMoreThanTheCeiling(t *testing.T) {
	for ceiling, want := range map[float64]float64{0: 10, 4: 4, 10: 10, 11: 10, inf: 10, -1: 10, nan: 10} {
		got := tenSeconds.WithCeiling(ceiling)
		check.That(t, got == (Limit{Capacity: want, Leak: 1}), "below %v: got %s, want a capacity of %v", ceiling, describe(got), want)
	}
	// So it knows how long a charge with a ceiling waits until it fits.
	check.Equal(t, tenSeconds.WithCeiling(4).TimeToFit(5, 2), 3*time.Second, "time to fit 2 above 5 below 4")
}
