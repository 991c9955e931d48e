package leakybucket

import "time"

// A Settlement corrects a charge once its true cost is known.
type Settlement struct {
	Charge Charge
	Was    Decision // of the store, when it took the charge

	// Diff is what the charge should have been, less what was poured: the
	// charge's cost, or nothing if it was a probe.
	Diff float64

	// Cancel gives the whole charge back, because the client left while it
	// waited. Diff is ignored. If the bucket was written since, nothing is given
	// back: the clients behind already know how long they wait.
	Cancel bool

	// BlockRest begins a block that began elsewhere, while this store was out of
	// reach: for so long from now, and at most for the length of BlockStep. Of two
	// blocks the later end and the larger step stay, so it may be told twice, and in
	// any order. Without a Block in the charge it is ignored. Zero begins none.
	BlockRest time.Duration
	BlockStep uint8 // of the charge's ladder, from 0
}

// Creates reports whether the bucket must be made if there is none.
func (s *Settlement) Creates() bool {
	return s.Diff > 0 && !s.Cancel || s.BlockRest > 0 && s.Charge.Block != nil
}

// Apply returns the state of the settlement's bucket after it, given the state
// that was read. It never gives back more than was poured.
func (s *Settlement) Apply(state State, now Instant) State {
	c := &s.Charge
	c.redate(&state, now)
	state = s.correct(state, now)
	if s.BlockRest > 0 && c.Block != nil {
		c.resume(&state, s.BlockRest, s.BlockStep, now)
	}
	return state
}

// correct is Apply without blocks.
func (s *Settlement) correct(state State, now Instant) State {
	c, poured := &s.Charge, 0.0
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
