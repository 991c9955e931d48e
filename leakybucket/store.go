package leakybucket

import "context"

// A Charge asks one bucket to take a cost.
type Charge struct {
	// Zone and Key name the bucket. Zone has no slash in it, Key may; the same
	// pair is the same bucket wherever it is charged.
	Zone, Key string

	Limit Limit
	Cost  float64 // units, as [Limit.Cost] returns it
	Debt  float64 // units above the capacity that a settlement may lift the level

	// Probe charges ask, and pour nothing.
	Probe bool

	// Shadow charges live in buckets of their own, never stand in the way of
	// others, and are poured as they would be if they were enforced.
	Shadow bool
}

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
	// with one limit and debt, each is judged with their sum.
	//
	// It is not an error if a charge does not fit. After an error the decisions
	// mean nothing, and the charges may or may not have been poured: the store
	// never repeats a call that may have been executed.
	Take(ctx context.Context, charges []Charge, decisions []Decision) error

	// Settle corrects charges in their order, each as [Limit.Settle] does; they
	// need not be one atomic step. A bucket that is not kept is made if there
	// is something to pour, and not if there is something to give back. Each
	// charge may be settled once; it is the caller who sees to that. After an
	// error it is not known which were settled, and none may be again.
	Settle(ctx context.Context, settlements []Settlement) error
}

// A Settlement corrects a charge once it is known what it should have been.
type Settlement struct {
	Charge Charge
	Was    Decision // of the store, when it took the charge

	// Diff is what the charge should have been, less what was poured: the
	// charge's cost, or nothing if it was a probe.
	Diff float64
}

// Apply returns the state of the settlement's bucket after it, from that which
// was read. What was not poured is not given back, nor more than was poured.
func (s *Settlement) Apply(state State, now Instant) State {
	poured := 0.0
	if s.Was.Poured {
		poured = s.Charge.Cost
	}
	return s.Charge.Limit.Settle(state, max(s.Diff, -poured), s.Charge.Debt, s.Was.At, now)
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

// Take is [Limit.Take] for the charge, and what a store does between reading
// and writing if it is asked for one. A probe changes nothing.
func (c *Charge) Take(state State, now Instant) (State, Decision) {
	taken, d := c.Limit.take(state, c.Cost, c.Debt, now)
	if c.Probe {
		d.Poured = false
		return c.Limit.redate(state, c.Debt, now), d
	}
	return taken, d
}

// TakeAll is [Charge.Take] for several buckets at once, and what a store does
// between reading and writing. states[i] is the bucket of charges[i] as it was
// read, and then as it must be written if that has changed it, which [Limit.Take]
// may do without pouring. If several charges name the same bucket, the last of
// them holds its final state.
func TakeAll(charges []Charge, states []State, now Instant, decisions []Decision) {
	fits := true
	for i := range charges {
		c := &charges[i]
		states[i] = c.Limit.redate(states[i], c.Debt, now)
		level := c.Limit.Level(states[i], now)
		fit := c.Cost >= 0 && c.Limit.fits(level, costOfBucket(charges, c))
		decisions[i] = Decision{Fits: fit, Level: level, At: now}
		fits = fits && (fit || c.Shadow)
	}
	if !fits {
		return
	}
	for i := range charges {
		c, d := &charges[i], &decisions[i]
		for j := range i {
			if c.sameBucket(&charges[j]) {
				states[i] = states[j]
			}
		}
		if d.Fits && !c.Probe {
			d.Poured, d.Level = true, c.Limit.Level(states[i], now)
			states[i] = states[i].pour(d.Level+c.Cost, now)
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
