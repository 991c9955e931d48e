package leakybucket

import (
	"cmp"
	"math"
)

// Restore returns what is left at now of a state that was saved earlier, perhaps
// under another limit. The level has leaked as it was written, and is then at most
// capacity plus debt. A block ends no later than one of its step that began now.
// Without a Block in the charge, none is kept. A state that is valid under the limit
// still says when it was written.
//
// Instants must count from 1970. An invalid state becomes an empty bucket. A state
// that lies ahead of now has not leaked.
func (c *Charge) Restore(s State, now Instant) (restored State) {
	if !(0 <= s.Level && s.Level <= math.MaxFloat64) || !(0 <= s.Leak && s.Leak <= largest) || s.At < 0 || s.BlockedUntil < 0 {
		return State{}
	}
	if level := min(s.level(now, c.Limit.Leak), c.Limit.Capacity+c.Debt); level > 0 {
		restored = State{Level: level, At: now, Leak: c.Limit.Leak}
		if s.At < now && s.Leak == c.Limit.Leak && s.Level <= c.Limit.Capacity+c.Debt {
			restored.Level, restored.At = s.Level, s.At
		}
	}
	if c.Block == nil || s.BlockedUntil == 0 {
		return restored
	}
	step := min(s.Step, uint8(max(1, len(c.Block.Steps))-1))
	until := min(s.BlockedUntil, now+c.longestBlock(step))
	return State{Level: restored.Level, At: cmp.Or(restored.At, now), Leak: c.Limit.Leak, BlockedUntil: until, Step: step}
}
