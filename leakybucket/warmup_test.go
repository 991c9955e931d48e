package leakybucket

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/internal/testseed"
)

// A warmUpStep is a pause, and then requests of cost 1 that wait for so long.
type warmUpStep struct {
	rate  float64
	pause time.Duration
	waits []float64 // seconds, to two decimals
}

func lasting(f float64) time.Duration { return time.Duration(f * float64(time.Second)) }

// The tables are those of Guava's RateLimiterTest: testWarmUp,
// testWarmUpWithColdFactor, testWarmUpWithColdFactor1, testWarmUpAndUpdate and
// testWarmUpAndUpdateWithColdFactor.
func TestWarmUpPacesAsGuavaDoes(t *testing.T) {
	slow := []float64{0, 1.38, 1.13, .88, .63, .5, .5, .5}
	slow10 := []float64{0, 1.75, 1.26, .76, .3, .2, .2, .2}
	even := []float64{0, .2, .2, .2, .2, .2, .2, .2}
	for _, test := range []struct {
		name       string
		coldFactor float64
		steps      []warmUpStep
	}{
		{"cold factor 3", 3, []warmUpStep{
			{2, 0, slow},
			{2, lasting(4.5), slow},
			{2, lasting(2.5), []float64{0, .5, .5, .5, .5, .5, .5, .5}},
		}},
		{"cold factor 3 by default", 0, []warmUpStep{{2, 0, slow}}},
		{"cold factor 10", 10, []warmUpStep{
			{5, 0, slow10},
			{5, lasting(4.2), slow10},
			{5, lasting(1.2), even},
		}},
		{"cold factor 1", 1, []warmUpStep{
			{5, 0, even},
			{5, lasting(.34), even},
		}},
		{"cold factor 3 and a changed rate", 3, []warmUpStep{
			{2, 0, slow},
			{2, lasting(4.5), []float64{0, 1.38, 1.13}},
			{4, 0, []float64{.88, .34, .28, .25, .25}},
			{4, lasting(4.25), []float64{0, .72, .66, .59, .53, .47, .41, .34, .28, .25, .25}},
		}},
		{"cold factor 10 and a changed rate", 10, []warmUpStep{
			{5, 0, slow10},
			{5, lasting(4.2), []float64{0, 1.75, 1.26}},
			{10, 0, []float64{.76, .2, .1, .1, .1}},
			{10, lasting(4.1), []float64{0, .94, .81, .69, .57, .44, .32, .2, .1, .1, .1}},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var pace Pace
			now := Instant(1e12)
			for i, step := range test.steps {
				w := WarmUp{Rate: step.rate, Period: 4 * time.Second, ColdFactor: test.coldFactor}
				if err := w.Validate(); err != nil {
					t.Fatal(err)
				}
				now = now.Add(step.pause)
				for j, want := range step.waits {
					var wait time.Duration
					pace, wait = w.Take(pace, 1, now)
					now = now.Add(wait)
					if got := wait.Seconds(); math.Abs(got-want) > .00501 {
						t.Errorf("step %d, request %d: got a wait of %.3f s, want %.2f s", i, j, got, want)
					}
				}
			}
		})
	}
}

// It is Guava's testTimeToWarmUpIsHonouredEvenWithWeights: the units between cold
// and warm take the period, however they are split.
func TestWarmUpTakesThePeriodWhateverTheCosts(t *testing.T) {
	seed := testseed.Of(t)
	random := rand.New(rand.NewPCG(seed, 8))
	for range 100 {
		for _, coldFactor := range []float64{2, 3, 10} {
			for _, rate := range []float64{4, 2, 1, .5, .1} {
				period := lasting((1 + coldFactor) * 10 / (2 * rate))
				w := WarmUp{Rate: rate, Period: period, ColdFactor: coldFactor}
				var pace Pace
				now := Instant(0)
				take := func(cost int) {
					var wait time.Duration
					pace, wait = w.Take(pace, float64(cost), now)
					now = now.Add(wait)
				}
				for left := 10; left > 0; {
					cost := 1 + random.IntN(left)
					left -= cost
					take(cost)
				}
				take(1) // waits for the last of them
				if got := now.Sub(0); (got - period).Abs() > time.Millisecond {
					t.Fatalf("seed %d, cold factor %v, rate %v: got %v, want %v", seed, coldFactor, rate, got, period)
				}
			}
		}
	}
}

func TestWarmUpWithoutAPeriodKeepsTheRate(t *testing.T) {
	w, pace := WarmUp{Rate: 4}, Pace{}
	for i := range 10 {
		var wait time.Duration
		pace, wait = w.Take(pace, 1, 0)
		if want := time.Duration(i) * time.Second / 4; wait != want {
			t.Errorf("request %d: got a wait of %v, want %v", i, wait, want)
		}
	}
}

func TestWarmUpRefusesWhatItCannotPace(t *testing.T) {
	for _, w := range []WarmUp{{}, {Rate: -1}, {Rate: math.NaN()}, {Rate: math.Inf(1)}, {Rate: 1, ColdFactor: .5}, {Rate: 1, ColdFactor: math.NaN()}} {
		if err := w.Validate(); err == nil {
			t.Errorf("%+v: got no error, want one", w)
		}
	}
}

func TestALongWarmUpQueueNeverWaitsLess(t *testing.T) {
	var p Pace
	last := time.Duration(0)
	for i := range 6 {
		var wait time.Duration
		if p, wait = (WarmUp{Rate: 1e-9}).Take(p, 1e12, at(1000)); wait < last {
			t.Errorf("take %d waits %v, less than the one before, %v", i+1, wait, last)
		}
		last = wait
	}
}
