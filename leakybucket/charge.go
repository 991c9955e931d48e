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
	// begins no block, and the charge ignores blocks begun by other charges.
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

// Take decides one charge, as a store does between reading and writing its
// bucket: [Limit.Take], with the charge's ceiling and block. It reports whether
// the state must be written, which may be so for a refusal and a probe too.
func (c *Charge) Take(s *State, now Instant, d *Decision) (write bool) {
	write = c.judge(s, c.Cost, now, d)
	if d.Fits && !c.Probe {
		d.Poured, write = true, true
		c.Limit.write(s, d.Level+c.Cost, now)
	}
	return write
}

// TakeLevel is Take for a bucket that keeps no block and was written with the leak of the
// charge, at now or before. It needs no copy of a State.
func (c *Charge) TakeLevel(level *float64, at *Instant, now Instant, d *Decision) {
	found := leaked(*level, c.Limit.Leak, now-*at)
	*d = Decision{Level: found, At: now, Fits: c.Limit.WithCeiling(c.Ceiling).fits(found, c.Cost)}
	if d.Fits && !c.Probe {
		*level, *at, d.Poured = found+c.Cost, now, true
	}
}

// judge decides whether the charge fits if cost is all that is asked of its
// bucket, and begins a block if it does not. It pours nothing.
func (c *Charge) judge(s *State, cost float64, now Instant, d *Decision) (write bool) {
	if s.At > now || s.BlockedUntil > now {
		write = c.redate(s, now)
	}
	level := s.level(now, c.Limit.Leak)
	if s.Leak != c.Limit.Leak {
		write = c.Limit.adopt(s, level, now) || write
	}
	*d = Decision{Level: level, At: now}
	switch {
	case s.BlockedUntil > now && c.Block != nil:
		d.BlockedUntil, d.Step = s.BlockedUntil, s.Step
	case c.Cost >= 0 && c.Limit.WithCeiling(c.Ceiling).fits(level, cost):
		d.Fits = true
	case c.Block != nil && c.Cost >= 0 && !c.Limit.Oversize(cost):
		c.begin(s, level, now)
		d.BlockedUntil, d.Step, d.Began, write = s.BlockedUntil, s.Step, true, true
	}
	return write
}

// TakeAll is [Charge.Take] for several buckets at once, all or none.
//
// Before the call states[i] is the bucket of charges[i] as it was read. After it
// states[i] is the bucket as it must be written, if that differs. It may differ
// without a pour. If several charges name the same bucket, the last of them
// holds its final state.
func TakeAll(charges []Charge, states []State, now Instant, decisions []Decision) {
	shared := anyShared(charges)
	for i := range charges {
		c, cost := &charges[i], charges[i].Cost
		if shared {
			carry(charges, states, i)
			cost = costOfBucket(charges, c)
		}
		c.judge(&states[i], cost, now, &decisions[i])
	}
	enforced, all := Fit(charges, decisions)
	for i := range charges {
		c, d := &charges[i], &decisions[i]
		if !enforced || c.Shadow && !all {
			continue
		}
		if shared {
			carry(charges, states, i)
		}
		if !c.Probe {
			d.Poured, d.Level = true, states[i].level(now, c.Limit.Leak)
			c.Limit.write(&states[i], d.Level+c.Cost, now)
		}
	}
}

// Fit reports whether all enforced charges of a take fit, by their decisions, and whether all
// of its charges do. A store pours enforced charges if the former is true, and shadow charges
// if the latter is.
func Fit(charges []Charge, decisions []Decision) (enforced, all bool) {
	enforced, all = true, true
	for i := range charges {
		if !decisions[i].Fits {
			enforced, all = enforced && charges[i].Shadow, false
		}
	}
	return enforced, all
}

// anyShared reports whether two charges name the same bucket. Most often none do, and
// a few bytes of their names tell that soon: each charge sets a bit chosen by those.
func anyShared(charges []Charge) bool {
	var seen [4]uint64
	for i := range charges {
		c := &charges[i]
		bit := uint8(len(c.Zone) + 7*len(c.Key) + 31*lastByte(c.Zone) + 101*lastByte(c.Key))
		if word, mask := &seen[bit/64], uint64(1)<<(bit%64); *word&mask == 0 {
			*word |= mask
			continue
		}
		for j := range i {
			if c.SameBucket(&charges[j]) {
				return true
			}
		}
	}
	return false
}

// carry lets the i-th charge find its bucket as an earlier one left it.
func carry(charges []Charge, states []State, i int) {
	for j := range i {
		if charges[i].SameBucket(&charges[j]) {
			states[i] = states[j]
		}
	}
}

// costOfBucket returns what all charges together ask of the bucket of c. A
// negative cost, which does not fit, makes no room for the others.
func costOfBucket(charges []Charge, c *Charge) float64 {
	sum := 0.0
	for i := range charges {
		if c.SameBucket(&charges[i]) {
			sum += max(0, charges[i].Cost)
		}
	}
	return sum
}

func lastByte(s string) int {
	if s == "" {
		return 0
	}
	return int(s[len(s)-1])
}

// SameBucket reports whether two charges name the same bucket.
func (c *Charge) SameBucket(other *Charge) bool {
	return c == other || c.Zone == other.Zone && c.Key == other.Key && c.Shadow == other.Shadow
}
