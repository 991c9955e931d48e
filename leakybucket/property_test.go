package leakybucket

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

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

// With P(j) poured up to and including take j, the window from i to j holds too
// much if P(j) - P(i-1) exceeds what the package promises. All are looked at.
func TestTheBoundHoldsInEveryWindow(t *testing.T) {
	seed := testseed.Of(t)
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	const steps = 400
	for range 100 {
		l, s, now := randomLimit(rng), State{}, Instant(0)
		times, poured := make([]Instant, 0, steps), make([]float64, 0, steps)
		for range steps {
			// Mostly too soon for what is asked, so that the bucket stays full.
			now += randomElapsed(rng, l) / 4
			cost := randomCost(rng, l, l.Level(s, now))
			var d Decision
			if s, d = l.Take(s, cost, now); d.Poured {
				times, poured = append(times, now), append(poured, cost)
			}
		}
		for i := range times {
			sum := 0.0
			for j := i; j < len(times); j++ {
				sum += poured[j]
				window := seconds(times[j] - times[i])
				bound := l.Capacity*(1+1e-9) + l.Leak*(window+1e-6)
				if sum > bound*(1+1e-12) { // the sum is rounded too
					t.Fatalf("%s: got %v poured in %v s, want at most %v", describe(l), sum, window, bound)
				}
			}
		}
	}
}

// Under limits at the ends of their range a level stays a number between 0 and
// full, and a bucket can be forgotten within 20 years.
func TestExtremeLimitsStayFinite(t *testing.T) {
	seed := testseed.Of(t)
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	ends := []float64{1e-9, 1e-6, 1, 1e6, 1e12}
	for _, capacity := range ends {
		for _, leak := range ends {
			l, s, now := Limit{Capacity: capacity, Leak: leak}, State{}, at(1.7e9)
			if l.Validate() != nil {
				continue
			}
			for step := range 2000 {
				now += randomElapsed(rng, l)
				cost := randomCost(rng, l, l.Level(s, now))
				if step%2 == 0 {
					s, _ = l.Take(s, cost, now)
				} else {
					s, _, _ = l.Fill(s, cost*(1-2*rng.Float64()), now)
				}
				if !(s.Level >= 0 && s.Level <= capacity*(1+tolerance)) {
					t.Fatalf("%s, step %d: got level %v, want 0 to the capacity", describe(l), step, s.Level)
				}
				if forget := l.EmptyAt(s); forget < s.At || forget > s.At.Add(longestDrain)+1 {
					t.Fatalf("%s, step %d: got it forgotten at %d, want within 20 years of %d", describe(l), step, forget, s.At)
				}
			}
		}
	}
}

// FuzzCharge rarely meets these by changing bits: limits, ladders and states
// that belong together.
func TestChargesKeepTheRulesOfBlocks(t *testing.T) {
	seed := testseed.Of(t)
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 100_000 {
		l := randomLimit(rng)
		c := Charge{Limit: l, Block: randomLadder(rng, l)}
		if debt := l.Capacity * float64(rng.IntN(3)); l.ValidateDebt(debt) == nil {
			c.Debt = debt
		}
		if c.Block == nil {
			c.Block = ladder()
		}
		if rng.IntN(3) == 0 {
			c.Ceiling = l.Capacity * rng.Float64()
		}
		now := at(1.7e9)
		s := State{Level: 3 * l.Capacity * rng.Float64() * rng.Float64(), At: now - randomElapsed(rng, l), Step: uint8(rng.IntN(5))}
		switch rng.IntN(3) {
		case 0:
			s.Leak = l.Leak
		case 1:
			s.Leak = randomLimit(rng).Leak
		}
		switch rng.IntN(6) {
		case 0:
			s.At = now + randomElapsed(rng, l)
		case 1, 2:
			s.BlockedUntil = now + randomElapsed(rng, l)
		case 3, 4:
			s.BlockedUntil = now - randomElapsed(rng, l)
		}
		c.Cost = randomCost(rng, l, l.Level(s, now))
		if checkCharge(t, c, s, now); t.Failed() {
			return
		}
	}
}
