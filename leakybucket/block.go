package leakybucket

import (
	"cmp"
	"errors"
	"fmt"
	"time"
)

// A Ladder says for how long an overflow blocks a bucket. While a block runs,
// nothing fits, and further overflows do not extend it.
type Ladder struct {
	// Steps are the lengths of successive blocks, each longer than the one
	// before. With 10m, 1h and 1d, a bucket that overflows again within 10 minutes
	// of its first block ending is blocked for 1 hour, then for 1 day. Once it
	// has been quiet for as long as its last block, it starts at 10 minutes again.
	//
	// If empty, a block lasts until the bucket is empty.
	Steps []time.Duration
}

// mostSteps keeps a State's Step within seven bits.
const mostSteps = 100

// Validate reports why the ladder cannot be used: more than 100 steps, a step not
// longer than the one before, or a step of more than 20 years.
func (l *Ladder) Validate() error {
	if len(l.Steps) > mostSteps {
		return fmt.Errorf("invalid block: %d durations: want at most %d", len(l.Steps), mostSteps)
	}
	last := time.Duration(0)
	for i, step := range l.Steps {
		switch {
		case step < time.Microsecond:
			return fmt.Errorf("invalid block of %v: want a duration above 0, such as 10m", step)
		case step <= last:
			return fmt.Errorf("invalid block: %v stands after %v: want each duration longer than the one before", step, l.Steps[i-1])
		case step > longestDrain:
			return errors.New("invalid block: want durations of at most 20 years")
		}
		last = step
	}
	return nil
}

// Length returns how long a block of a step lasts, or 0 if the ladder is empty: such a block
// has no length of its own. Beyond the last step, it is that of the last.
func (l *Ladder) Length(step uint8) time.Duration {
	if len(l.Steps) == 0 {
		return 0
	}
	return l.Steps[min(int(step), len(l.Steps)-1)]
}

func (l *Ladder) length(step uint8) Instant { return Instant(l.Length(step).Microseconds()) }

// begin begins a block at now, after an overflow of a bucket filled to level.
func (c *Charge) begin(s *State, level float64, now Instant) {
	length := c.Block.length(s.Step)
	if s.BlockedUntil != 0 && length > 0 && now-s.BlockedUntil < length {
		s.Step = min(s.Step+1, uint8(len(c.Block.Steps)-1))
	} else {
		s.Step = 0
	}
	s.BlockedUntil = now + cmp.Or(c.Block.length(s.Step), min(microseconds(level/c.Limit.Leak), c.longestDrain()))
	c.Limit.write(s, level, now)
}

// longestDrain returns how long a full bucket in debt takes to empty.
func (c *Charge) longestDrain() Instant {
	return microseconds((c.Limit.Capacity + c.Debt) / c.Limit.Leak)
}

// redate drops what a clock that was later set far back has left too far ahead. A
// level further ahead than a full bucket in debt takes to empty becomes one of
// now. A block that ends further ahead than its length is over. Both have mostAhead besides.
func (c *Charge) redate(s *State, now Instant) (changed bool) {
	if at := s.At; at > now {
		c.Limit.redate(s, c.Debt, now)
		changed = s.At != at
	}
	if c.Block != nil && s.BlockedUntil-now-mostAhead > cmp.Or(c.Block.length(s.Step), c.longestDrain()) {
		s.BlockedUntil, s.Step = 0, 0
		changed = true
	}
	return changed
}
