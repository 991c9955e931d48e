package leakybucket

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
}

// Creates reports whether the bucket must be made if there is none.
func (s *Settlement) Creates() bool { return s.Diff > 0 && !s.Cancel }

// Apply returns the state of the settlement's bucket after it, given the state
// that was read. It never gives back more than was poured.
func (s *Settlement) Apply(state State, now Instant) State {
	c, poured := &s.Charge, 0.0
	c.redate(&state, now)
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
