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
				now = now.Add(c.RetryAfter(&d))
				if c.Take(&s, now, &d); !d.Fits {
					t.Fatalf("%s, cost %v: got %+v after waiting as told, want it to fit", describe(c.Limit), c.Cost, d)
				}
			}
		}
		check.Assume(t, blocks == 1 && s.Step == 0, "%s: got %d blocks, the last of step %d, want one of step 0", describe(c.Limit), blocks, s.Step)
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

// reservations is a bucket that takes, settles, cancels and blocks at random,
// and what was reserved and given back.
type reservations struct {
	rng    *rand.Rand
	bucket Charge
	state  State
	now    Instant
	open   []Settlement
	events []reservation

	blocks, held, cancelled int // how often it did what it is to be tried with
}

type reservation struct {
	at             Instant
	reserved, back float64
}

func (r *reservations) reserve() {
	c, d := r.bucket, Decision{}
	c.Cost = c.Limit.Capacity * r.rng.Float64() * r.rng.Float64()
	c.Probe = r.rng.IntN(8) == 0
	if r.rng.IntN(3) == 0 {
		c.Ceiling = c.Cost + c.Limit.Capacity*r.rng.Float64()
	}
	if r.rng.IntN(3) == 0 {
		c.Block = nil // as after a changed configuration
	}
	before := r.state
	c.Take(&r.state, r.now, &d)
	if d.Began {
		r.blocks++
	}
	if d.BlockedUntil != 0 && !d.Began {
		r.held++
		if r.state != before {
			r.state.Level = nan // for what follows to fail
		}
	}
	if d.Poured {
		r.events = append(r.events, reservation{at: r.now, reserved: c.Cost})
		r.open = append(r.open, Settlement{Charge: c, Was: d})
	}
}

// settle corrects one of the open charges, or cancels the last one or another.
func (r *reservations) settle() (ok bool) {
	i := r.rng.IntN(len(r.open))
	if r.rng.IntN(3) == 0 {
		i = len(r.open) - 1
	}
	s := r.open[i]
	r.open = append(r.open[:i], r.open[i+1:]...)
	s.Diff, s.Cancel = (3*r.rng.Float64()-1)*s.Charge.Cost, r.rng.IntN(2) == 0
	l, was := s.Charge.Limit, r.state
	before := l.Level(was, r.now)
	r.state = s.Apply(was, r.now)
	back := max(0, before-l.Level(r.state, r.now))
	if s.Cancel && back > 0 {
		r.cancelled++
	}
	r.events = append(r.events, reservation{at: r.now, back: back})
	return r.state.Level >= 0 && r.state.Level <= max(before, l.Capacity+s.Charge.Debt)*(1+1e-9) && back <= s.Charge.Cost*(1+1e-9)+1e-9 &&
		r.state.At >= was.At && r.state.BlockedUntil == was.BlockedUntil && r.state.Step == was.Step
}

// The bound of the package's comment, with reservations that are corrected and
// cancelled, beneath ceilings and between blocks: what is reserved in a window
// is at most what the bucket holds, leaks in it, and was given back in it.
func TestReservationsKeepTheBoundWhateverIsSettled(t *testing.T) {
	var sum reservations
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 0))
		l := Limit{Capacity: 1 + 20*rng.Float64(), Leak: 0.1 + 10*rng.Float64()}
		r := &reservations{rng: rng, bucket: Charge{Limit: l, Debt: l.Capacity * float64(rng.IntN(3)), Block: randomLadder(rng, l)}}
		for range 300 {
			if rng.IntN(3) > 0 { // some in one instant
				r.now += Instant(rng.Int64N(300_000))
			}
			if rng.IntN(2) == 0 || len(r.open) == 0 {
				r.reserve()
			} else if !r.settle() {
				t.Fatalf("seed %d: got %+v after a settlement, which is out of range", seed, r.state)
			}
		}
		for i := range r.events {
			reserved, back := 0.0, 0.0
			for _, e := range r.events[i:] {
				reserved += e.reserved
				back += e.back
				allowed := l.Capacity*(1+1e-9) + l.Leak*(seconds(e.at-r.events[i].at)+1e-6) + back
				check.Assume(t, reserved <= allowed+1e-9, "seed %d: %v was reserved from %d to %d, and %v is allowed", seed, reserved, r.events[i].at, e.at, allowed)
			}
		}
		sum.blocks, sum.held, sum.cancelled = sum.blocks+r.blocks, sum.held+r.held, sum.cancelled+r.cancelled
	}
	if sum.blocks < 100 || sum.held < 1000 || sum.cancelled < 1000 {
		t.Errorf("got %d blocks, %d charges refused by them and %d cancelled, want 100, 1000 and 1000 at least", sum.blocks, sum.held, sum.cancelled)
	}
}
