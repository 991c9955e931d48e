package leakybucket

import "time"

// A Charge asks one bucket to take a cost.
type Charge struct {
	// Zone and Key name the bucket. The same pair is the same bucket wherever it
	// is charged. Zone must not contain a slash, Key may.
	Zone, Key string

	Limit Limit
	Cost  float64 // units, as [Limit.ClampCost] returns it
	Debt  float64 // how far above the capacity a settlement may lift the level, in units

	// Ceiling is how high this charge may fill the bucket, in units, if that is
	// less than the capacity. Zero means no ceiling. See [Limit.Ceiling].
	Ceiling float64

	// Undelayed is how full this charge may find the bucket without waiting, in
	// units. It does not decide whether the charge fits. See [Charge.Delay].
	Undelayed float64

	// Block says for how long an overflow blocks the bucket. If nil, an overflow
	// begins no block, and the charge ignores blocks begun by other charges. It must not be
	// changed afterwards: a store may still read it once its caller has left.
	Block *Ladder

	// Probe charges ask and pour nothing. Like others, they may begin a block.
	Probe bool

	// Shadow charges are a dry run. They use buckets of their own and never keep
	// enforced charges from being poured. They are poured if every charge of the take
	// fits, as if all of them were enforced.
	Shadow bool
}

// A Decision says what became of one charge. Everything else follows from its
// level by methods of [Limit]: what remains, how long to wait.
type Decision struct {
	Fits   bool    // the bucket would not overflow, and is not blocked
	Poured bool    // the cost was poured: every enforced charge of the take fits (for a shadow one: every charge)
	Level  float64 // how full the bucket was before this charge (a probe: before all), in units of cost
	At     Instant // when that was so, on the store's clock

	BlockedUntil Instant // the end of the block that runs; 0 if none does
	Step         uint8   // which step of the ladder that block is, from 0
	Began        bool    // the charge began that block

	// Undecided says that the store could not be asked. Fits is then what a
	// fallback policy says, and nothing was poured.
	Undecided bool

	// Local says that a bucket of this node's own decided, because the shared store
	// did not answer. The charge is settled there.
	Local bool
}

// Delay returns how long a charge that was poured waits. See [Limit.Delay].
func (c *Charge) Delay(d *Decision) time.Duration { return c.Limit.Delay(d.Level, c.Undelayed) }

// RetryAfter returns how long it takes until the charge fits if nobody else pours: until
// enough has leaked, and a block is over. It is zero if the charge fits, if it can never fit
// (see [Limit.Oversize]), and if nothing is known of its bucket.
func (c *Charge) RetryAfter(d *Decision) time.Duration {
	limit := c.Limit.WithCeiling(c.Ceiling)
	if d.Fits || d.Undecided || limit.Oversize(c.Cost) {
		return 0
	}
	return max(limit.TimeToFit(d.Level, c.Cost), d.BlockedUntil.Sub(d.At))
}

// Take decides one charge, as a store does between reading and writing its
// bucket: [Limit.Take], with the charge's ceiling and block. It reports whether
// the state must be written, which may be so for a refusal and a probe too.
func (c *Charge) Take(s *State, now Instant, d *Decision) (write bool) {
	write = c.Judge(s, c.Cost, now, d)
	if d.Fits && !c.Probe {
		d.Poured, write = true, true
		c.Limit.write(s, d.Level+c.Cost, now)
	}
	return write
}

// Judge decides whether the charge fits if cost, in units, is all that is asked of its bucket,
// and begins a block if it does not. It pours nothing. It reports whether the state must be
// written.
func (c *Charge) Judge(s *State, cost float64, now Instant, d *Decision) (write bool) {
	if s.At > now || s.BlockedUntil > now {
		write = c.redate(s, now)
	}
	level := s.level(now, c.Limit.Leak)
	if s.Leak != c.Limit.Leak && s.Leak != 0 && level > 0 {
		// Bring it up to date, so that waits computed from this limit are true. While nodes disagree
		// about a leak, as in a rolling reload, each of their refusals in turn is a write.
		c.Limit.write(s, level, now)
		write = true
	}
	*d = Decision{Level: level, At: now}
	switch {
	case s.BlockedUntil > now && c.Block != nil:
		d.BlockedUntil, d.Step = s.BlockedUntil, s.Step
	case c.Cost >= 0 && c.Limit.WithCeiling(c.Ceiling).Fits(level, cost):
		d.Fits = true
	case c.Block != nil && c.Cost >= 0 && !c.Limit.Oversize(cost):
		c.begin(s, level, now)
		d.BlockedUntil, d.Step, d.Began, write = s.BlockedUntil, s.Step, true, true
	}
	return write
}
