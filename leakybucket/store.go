package leakybucket

import (
	"context"
	"errors"
	"time"
)

// A Charge asks one bucket to take a cost.
type Charge struct {
	// Zone and Key name the bucket. Zone has no slash in it, Key may; the same
	// pair is the same bucket wherever it is charged.
	Zone, Key string

	Limit Limit
	Cost  float64 // units, as [Limit.Cost] returns it
	Debt  float64 // units above the capacity that a settlement may lift the level

	// Ceiling is how high this charge may fill the bucket, if that is less than
	// the capacity, in units; 0 is no ceiling. See [Limit.Ceiling].
	Ceiling float64

	// Undelayed is how full this charge may find the bucket without waiting, in
	// units. It decides nothing: see [Charge.Delay].
	Undelayed float64

	// Block says for how long an overflow blocks the bucket; nil is not at all,
	// nor is a block heeded that another charge has begun.
	Block *Ladder

	// Probe charges ask, and pour nothing.
	Probe bool

	// Shadow charges live in buckets of their own, never stand in the way of
	// others, and are poured as they would be if they were enforced.
	Shadow bool
}

// Delay returns how long a charge that was poured waits. See [Limit.Delay].
func (c *Charge) Delay(d *Decision) time.Duration { return c.Limit.Delay(d.Level, c.Undelayed) }

// A Store keeps buckets and asks them on its own clock. It is safe for
// concurrent use.
type Store interface {
	// Take asks all charges and pours all or none of them, in one atomic step
	// on the store's clock, and writes one decision for each charge; decisions
	// must be as long as charges.
	//
	// If one enforced charge does not fit, nothing is poured anywhere, shadow
	// charges included. A shadow charge that does not fit keeps back nothing
	// but itself. If several charges name the same bucket, which they must do
	// with one limit, debt and block, each is judged with their sum.
	//
	// A charge that overflows begins a block of its bucket, if it says so and
	// none runs, whatever becomes of the others. One that could never fit does
	// not.
	//
	// It is not an error if a charge does not fit. After an error the decisions
	// mean nothing, and the charges may or may not have been poured: the store
	// never repeats a call that may have been executed.
	//
	// A store that judges by less than a whole limit, because it stands in for
	// one that is shared, leaves the charges as it has judged them.
	Take(ctx context.Context, charges []Charge, decisions []Decision) error

	// Settle corrects charges in their order, each as [Limit.Settle] does; they
	// need not be one atomic step. A bucket that is not kept is made if there
	// is something to pour, and not if there is something to give back. Each
	// charge may be settled once; it is the caller who sees to that. After an
	// error it is not known which were settled, and none may be again.
	Settle(ctx context.Context, settlements []Settlement) error
}

// ErrBucket is in the tree of errors that are about a bucket of the call and no
// other: something else stands under its name. The store is well.
var ErrBucket = errors.New("it is no bucket of ours")

// A Settlement corrects a charge once it is known what it should have been.
type Settlement struct {
	Charge Charge
	Was    Decision // of the store, when it took the charge

	// Diff is what the charge should have been, less what was poured: the
	// charge's cost, or nothing if it was a probe.
	Diff float64

	// Cancel gives all back, and Diff means nothing: who was charged has left
	// before their turn came. If anything was poured since, nothing is given
	// back: those behind already know when their turn is, and the place stays
	// empty.
	Cancel bool
}

// A Pinger is a store that may be out of reach.
type Pinger interface {
	// Ping returns nil if the store answers and can be written to.
	Ping(ctx context.Context) error
}

// A Resetter is a store of which single buckets can be forgotten at once.
type Resetter interface {
	// Reset forgets a bucket: it is empty then, and not blocked, and its next
	// block is of the first step. It is not an error if there is none.
	Reset(ctx context.Context, zone, key string, shadow bool) error
}

// Apply returns the state of the settlement's bucket after it, from that which
// was read. What was not poured is not given back, nor more than was poured.
func (s *Settlement) Apply(state State, now Instant) State {
	c := &s.Charge
	c.redate(&state, now)
	poured := 0.0
	if s.Was.Poured {
		poured = c.Cost
	}
	if s.Cancel {
		if s.Was.Poured && state.At == s.Was.At && state.Level == s.Was.Level+poured {
			state.Level = s.Was.Level
			c.Limit.write(&state, c.Limit.Level(state, now), now)
		}
		return state
	}
	return c.Limit.Settle(state, max(s.Diff, -poured), c.Debt, s.Was.At, now)
}

// A Counter is a store that knows how many buckets it keeps. Buckets that may
// be forgotten, and are not yet, count.
type Counter interface {
	// Buckets returns the number of buckets of each zone, shadow ones included.
	Buckets() map[string]int
}

// An Evicter is a store that is bounded and, when it is full, drops buckets
// that are not yet empty.
type Evicter interface {
	// Evictions returns how many such buckets were dropped so far.
	Evictions() uint64
}

// Take is what a store does between reading and writing a bucket if it is asked
// for one charge: [Limit.Take], with the charge's ceiling and block. It reports
// whether the state must be written, which may be so for a probe too.
func (c *Charge) Take(s *State, now Instant, d *Decision) (write bool) {
	write = c.judge(s, c.Cost, now, d)
	if d.Fits && !c.Probe {
		d.Poured, write = true, true
		c.Limit.write(s, d.Level+c.Cost, now)
	}
	return write
}

// judge decides whether the charge fits if all that is asked of its bucket is
// cost, and begins a block if not. It pours nothing.
func (c *Charge) judge(s *State, cost float64, now Instant, d *Decision) (write bool) {
	if s.At > now || s.BlockedUntil > now {
		write = c.redate(s, now)
	}
	level := c.Limit.Level(*s, now)
	if s.Leak != c.Limit.Leak {
		write = c.Limit.adopt(s, level, now) || write
	}
	*d = Decision{Level: level, At: now}
	switch {
	case s.BlockedUntil > now && c.Block != nil:
		d.BlockedUntil, d.Step = s.BlockedUntil, s.Step
	case c.Cost >= 0 && c.Limit.Below(c.Ceiling).fits(level, cost):
		d.Fits = true
	case c.Block != nil && c.Cost >= 0 && !c.Limit.Oversize(cost):
		c.begin(s, level, now)
		d.BlockedUntil, d.Step, d.Began, write = s.BlockedUntil, s.Step, true, true
	}
	return write
}

// TakeAll is [Charge.Take] for several buckets at once, and what a store does
// between reading and writing. states[i] is the bucket of charges[i] as it was
// read, and then as it must be written if that has changed it, which it may
// without a pour. If several charges name the same bucket, the last of them
// holds its final state.
func TakeAll(charges []Charge, states []State, now Instant, decisions []Decision) {
	fits := true
	for i := range charges {
		c := &charges[i]
		carry(charges, states, i)
		c.judge(&states[i], costOfBucket(charges, c), now, &decisions[i])
		if decisions[i].Began {
			carryBack(charges, states, i) // what an earlier one pours must not undo the block
		}
		fits = fits && (decisions[i].Fits || c.Shadow)
	}
	if !fits {
		return
	}
	for i := range charges {
		c, d := &charges[i], &decisions[i]
		carry(charges, states, i)
		if d.Fits && !c.Probe {
			d.Poured, d.Level = true, c.Limit.Level(states[i], now)
			c.Limit.write(&states[i], d.Level+c.Cost, now)
		}
	}
}

// carry lets the i-th charge find its bucket as an earlier one left it.
func carry(charges []Charge, states []State, i int) {
	for j := range i {
		if charges[i].sameBucket(&charges[j]) {
			states[i] = states[j]
		}
	}
}

// carryBack lets earlier charges find their bucket as the i-th left it.
func carryBack(charges []Charge, states []State, i int) {
	for j := range i {
		if charges[i].sameBucket(&charges[j]) {
			states[j] = states[i]
		}
	}
}

// costOfBucket returns what all charges together ask of the bucket of c. A
// negative cost, which does not fit, makes no room for the others.
func costOfBucket(charges []Charge, c *Charge) float64 {
	if len(charges) == 1 {
		return c.Cost
	}
	sum := 0.0
	for i := range charges {
		if c.sameBucket(&charges[i]) {
			sum += max(0, charges[i].Cost)
		}
	}
	return sum
}

func (c *Charge) sameBucket(other *Charge) bool {
	return c == other || c.Key == other.Key && c.Zone == other.Zone && c.Shadow == other.Shadow
}
