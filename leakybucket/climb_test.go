package leakybucket

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/testseed"
)

// wait returns how long a refused client is told to wait: for the rest of the
// block and until its cost fits.
func (c *Charge) wait(d Decision) time.Duration {
	return max(d.BlockedUntil.Sub(d.At), c.Limit.TimeToFit(d.Level, c.Cost))
}

var threeSteps = ladder(time.Minute, 10*time.Minute, time.Hour)

func TestAClientThatWaitsAsToldAndSendsNoFasterThanTheLeakNeverClimbs(t *testing.T) {
	seed := testseed.Of(t)
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 300 {
		capacity := 1 + 100*rng.Float64()
		c := Charge{Limit: Limit{Capacity: capacity, Leak: capacity / (1 + 3600*rng.Float64())}, Block: threeSteps}
		s, d, now, blocks := State{}, Decision{}, at(1e6), 0
		for range 500 {
			c.Cost = capacity * (0.01 + 0.5*rng.Float64())
			if blocks > 0 { // since then it sends no faster than the leak
				now += microseconds(c.Cost/c.Limit.Leak) + Instant(rng.Int64N(10e6))
			}
			c.Take(&s, now, &d)
			if !d.Fits {
				blocks++
				now = now.Add(c.wait(d))
				if c.Take(&s, now, &d); !d.Fits {
					t.Fatalf("%s, cost %v: got %+v after waiting as told, want it to fit", describe(c.Limit), c.Cost, d)
				}
			}
		}
		if blocks != 1 || s.Step != 0 {
			t.Fatalf("%s: got %d blocks, the last of step %d, want one of step 0", describe(c.Limit), blocks, s.Step)
		}
	}
}

func TestAClientThatHammersClimbsTheLadder(t *testing.T) {
	c := Charge{Limit: tenSeconds, Cost: 1, Block: threeSteps}
	s, d, lengths := State{}, Decision{}, []time.Duration(nil)
	for now := at(0); len(lengths) < 5 && now < at(1e5); now += at(0.1) {
		if c.Take(&s, now, &d); d.Began {
			lengths = append(lengths, d.BlockedUntil.Sub(now))
		}
	}
	if want := append(slices.Clone(threeSteps.Steps), time.Hour, time.Hour); !slices.Equal(lengths, want) {
		t.Errorf("blocks of who sends ten times as fast as the leak, whatever comes back: got %v, want %v", lengths, want)
	}
}

// A client that comes back when its block is over and goes on as before climbs too.
func TestAClientThatWaitsAsToldAndGoesOnAsBeforeClimbs(t *testing.T) {
	c := Charge{Limit: tenSeconds, Cost: 1, Block: threeSteps}
	s, d, now, lengths := State{}, Decision{}, at(0), []time.Duration(nil)
	for len(lengths) < 4 && now < at(1e5) {
		if c.Take(&s, now, &d); d.Began {
			lengths = append(lengths, d.BlockedUntil.Sub(now))
			now = now.Add(c.wait(d))
		}
		now += at(0.1)
	}
	if want := append(slices.Clone(threeSteps.Steps), time.Hour); !slices.Equal(lengths, want) {
		t.Errorf("blocks: got %v, want %v", lengths, want)
	}
}

// A charge that waits for a block to end and for room must fit then, whatever
// it found.
func TestWaitingAsToldIsEnoughWhateverBlockRuns(t *testing.T) {
	seed := testseed.Of(t)
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	told := 0
	for range 100_000 {
		l := randomLimit(rng)
		c := Charge{Limit: l, Debt: l.Capacity, Block: randomLadder(rng, l)}
		if l.ValidateDebt(c.Debt) != nil {
			continue
		}
		s, d := State{Level: 2 * l.Capacity * rng.Float64()}, Decision{}
		c.Cost = l.Capacity * rng.Float64()
		if rng.IntN(2) == 0 {
			c.Take(&s, 0, &d) // may begin the block that the next one finds
		}
		now := randomElapsed(rng, l)
		c.Take(&s, now, &d)
		if d.Fits {
			continue
		}
		told++
		wait := c.wait(d)
		if c.Take(&s, now.Add(wait), &d); !d.Fits {
			t.Fatalf("%s under %v, cost %v: got %+v after waiting %v as told, want it to fit", describe(l), c.Block, c.Cost, d, wait)
		}
	}
	if told < 10_000 {
		t.Errorf("waits: got %d, want 10000 or more", told)
	}
}

// randomLadder returns no block, one without steps, or a ladder whose steps are
// of the order of what a full bucket takes to drain.
func randomLadder(rng *rand.Rand, l Limit) *Ladder {
	if rng.IntN(4) == 0 {
		return nil
	}
	of := ladder()
	for drain := microseconds(l.Capacity / l.Leak); rng.IntN(3) > 0 && len(of.Steps) < 4; {
		of.Steps = append(of.Steps, time.Duration(1+rng.Int64N(1+int64(drain))*3/2)*time.Microsecond)
	}
	slices.Sort(of.Steps)
	of.Steps = slices.Compact(of.Steps)
	if of.Validate() != nil {
		return ladder()
	}
	return of
}
