package leakybucket

import (
	"math/rand/v2"
	"testing"
)

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
				if !(reserved <= allowed+1e-9) {
					t.Fatalf("seed %d: %v was reserved from %d to %d, and %v is allowed", seed, reserved, r.events[i].at, e.at, allowed)
				}
			}
		}
		sum.blocks, sum.held, sum.cancelled = sum.blocks+r.blocks, sum.held+r.held, sum.cancelled+r.cancelled
	}
	if sum.blocks < 100 || sum.held < 1000 || sum.cancelled < 1000 {
		t.Errorf("got %d blocks, %d charges refused by them and %d cancelled, want 100, 1000 and 1000 at least", sum.blocks, sum.held, sum.cancelled)
	}
}
