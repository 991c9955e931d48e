package leakybucket

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/testseed"
)

func describe(l Limit) string { return fmt.Sprintf("capacity %v, leak %v/s", l.Capacity, l.Leak) }

// randomLimit returns a valid limit from anywhere in the range.
func randomLimit(rng *rand.Rand) Limit {
	for {
		l := Limit{Capacity: math.Pow(10, 21*rng.Float64()-9), Leak: math.Pow(10, 21*rng.Float64()-9)}
		if l.Validate() == nil {
			return l
		}
	}
}

// randomElapsed returns a time of the order in which the limit matters: none,
// a few microseconds, or up to twice what a full bucket takes to drain.
func randomElapsed(rng *rand.Rand, l Limit) Instant {
	switch rng.IntN(4) {
	case 0:
		return 0
	case 1:
		return Instant(rng.IntN(100))
	}
	return microseconds(l.Capacity / l.Leak * 2 * rng.Float64() * rng.Float64())
}

// randomCost returns 0, what fills the bucket from level, or anything up to the
// capacity and a little over.
func randomCost(rng *rand.Rand, l Limit, level float64) float64 {
	switch rng.IntN(8) {
	case 0:
		return 0
	case 1:
		return max(0, l.Capacity-level)
	case 2:
		return l.Capacity * 1.1 * rng.Float64()
	}
	return l.ClampCost(l.Capacity * rng.Float64() * rng.Float64())
}

// exact is a bucket in rational numbers. It is told what was poured, since at
// the brim the tolerance decides, and says how full it must be.
type exact struct {
	leak, level *big.Rat
	at          Instant
}

func newExact(l Limit) *exact {
	return &exact{leak: new(big.Rat).SetFloat64(l.Leak), level: new(big.Rat)}
}

func (e *exact) drain(now Instant) {
	e.level.Sub(e.level, new(big.Rat).Mul(e.leak, big.NewRat(int64(now-e.at), 1e6)))
	if e.at = now; e.level.Sign() < 0 {
		e.level.SetInt64(0)
	}
}

func (e *exact) pour(cost float64) { e.level.Add(e.level, new(big.Rat).SetFloat64(cost)) }

// off returns how far a level is from the exact one.
func (e *exact) off(level float64) float64 {
	off, _ := new(big.Rat).Sub(new(big.Rat).SetFloat64(level), e.level).Float64()
	return math.Abs(off)
}

func TestLevelsAreThoseOfRationalNumbers(t *testing.T) {
	seed := testseed.Of(t)
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 300 {
		l, s, sum := randomLimit(rng), State{}, 0.0
		want := newExact(l)
		for step, now := 0, Instant(0); step < 200; step++ {
			now += randomElapsed(rng, l)
			cost := randomCost(rng, l, l.Level(s, now))
			var d Decision
			s, d = l.Take(s, cost, now)
			want.drain(now)
			if off := want.off(d.Level); !(off <= 1e-9*(1+sum)) {
				t.Fatalf("%s, step %d: got level %v, off by %v, want within 1e-9*(1+%v)", describe(l), step, d.Level, off, sum)
			}
			room := new(big.Rat).SetFloat64(l.Capacity)
			room.Sub(room, want.level).Sub(room, new(big.Rat).SetFloat64(cost))
			spare, _ := room.Float64()
			if fits := spare >= 0; cost > 0 && fits != d.Fits && math.Abs(spare) > 2*tolerance*l.Capacity {
				t.Fatalf("%s, step %d: cost %v at level %v: got fits %v, want %v", describe(l), step, cost, d.Level, d.Fits, fits)
			}
			if d.Poured {
				want.pour(cost)
				sum += cost
			}
		}
	}
}

// A charge that waits for a block to end and for room fits then, whatever it found, and a
// millisecond less is too little, but for a wait that is shorter or a leak that a millisecond
// of is rounding.
func TestWaitingAsToldIsEnoughAndNeeded(t *testing.T) {
	seed := testseed.Of(t)
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	told, needed := 0, 0
	for range 100_000 {
		l := randomLimit(rng)
		c := Charge{Limit: l, Debt: l.Capacity, Block: randomLadder(rng, l)}
		if l.ValidateDebt(c.Debt) != nil {
			continue
		}
		s, d := State{Level: 3 * l.Capacity * rng.Float64()}, Decision{}
		if rng.IntN(4) > 0 {
			c.Cost = l.Capacity * rng.Float64()
		}
		if rng.IntN(3) == 0 {
			c.Ceiling = c.Cost + (l.Capacity-c.Cost)*rng.Float64()
		}
		if rng.IntN(2) == 0 {
			c.Take(&s, 0, &d) // may begin the block that the next one finds
		}
		now := randomElapsed(rng, l)
		c.Take(&s, now, &d)
		if d.Fits {
			if got := c.RetryAfter(&d); got != 0 {
				t.Fatalf("%s, cost %v: got a wait of %v for what fits", describe(l), c.Cost, got)
			}
			continue
		}
		told++
		wait, level := c.RetryAfter(&d), d.Level
		if early := s; wait > time.Millisecond && l.Leak*1e-3 > 2*tolerance*l.Capacity {
			needed++
			if c.Take(&early, now.Add(wait-time.Millisecond), &d); d.Fits {
				t.Fatalf("%s under %v, ceiling %v, cost %v at level %v: got it to fit 1 ms before %v", describe(l), c.Block, c.Ceiling, c.Cost, level, wait)
			}
		}
		if c.Take(&s, now.Add(wait), &d); !d.Fits {
			t.Fatalf("%s under %v, cost %v: got %+v after waiting %v as told, want it to fit", describe(l), c.Block, c.Cost, d, wait)
		}
	}
	check.That(t, told >= 10_000 && needed >= 3000, "waits: got %d, and %d that were tried too early, want 10000 and 3000 or more", told, needed)
	never := (&Charge{Limit: tenSeconds, Cost: 11})
	check.That(t, never.RetryAfter(new(Decision)) == 0, "a cost that can never fit: got a wait, want none")
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

// A refusal has nothing to bring up to date in a bucket that is empty, kept
// without a leak, or of the same leak.
func TestARefusalLeavesABucketAsItIsUnlessItsLeakHasChanged(t *testing.T) {
	for about, s := range map[string]State{
		"never written":     {},
		"drained":           {Level: 5, At: at(100), Leak: 1},
		"without a leak":    {Level: 5000, At: at(100)},
		"of the same leak":  {Level: 5000, At: at(100), Leak: 10},
		"blocked and empty": {At: at(100), Leak: 1, BlockedUntil: at(1001)},
	} {
		c, after, d := Charge{Limit: Limit{Capacity: 10, Leak: 10}, Cost: 11, Block: ladder(time.Hour)}, s, Decision{}
		write := c.Take(&after, at(1000), &d)
		check.That(t, !write && after == s && !d.Fits, "%s: got %+v, write %v, after a refusal, want %+v unchanged", about, after, write, s)
	}
}
