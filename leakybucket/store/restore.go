package store

import (
	"cmp"
	"math"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// Expiry returns the instant after which forgetting the bucket of c in this state
// changes no decision: it is empty, its block is over, and another block would
// be of the first step again. Stores evict in the order of these instants.
func Expiry(c *leakybucket.Charge, s *leakybucket.State) leakybucket.Instant {
	forget := c.Limit.EmptyAt(*s)
	if c.Block != nil && s.BlockedUntil != 0 {
		forget = max(forget, s.BlockedUntil.Add(c.Block.Length(s.Step)))
	}
	return forget
}

// largest is the largest leak of a limit.
const largest = 1e12

// Restore returns what is left at now of a state of the bucket of c that was saved earlier,
// perhaps under another limit. The level has leaked as it was written, and is then at most
// capacity plus debt. A block ends no later than one of its step that began now.
// Without a Block in the charge, none is kept. A state that is valid under the limit
// still says when it was written.
//
// Instants must count from 1970. An invalid state becomes an empty bucket. A state
// that lies ahead of now has not leaked.
func Restore(c *leakybucket.Charge, s leakybucket.State, now leakybucket.Instant) (restored leakybucket.State) {
	if !(0 <= s.Level && s.Level <= math.MaxFloat64) || !(0 <= s.Leak && s.Leak <= largest) || s.At < 0 || s.BlockedUntil < 0 {
		return leakybucket.State{}
	}
	most := c.Limit.Capacity + c.Debt
	if level := min(c.Limit.Level(s, now), most); level > 0 {
		restored = leakybucket.State{Level: level, At: now, Leak: c.Limit.Leak}
		if s.At < now && s.Leak == c.Limit.Leak && s.Level <= most {
			restored.Level, restored.At = s.Level, s.At
		}
	}
	if c.Block == nil || s.BlockedUntil == 0 {
		return restored
	}
	step := min(s.Step, uint8(max(1, len(c.Block.Steps))-1))
	longest := cmp.Or(c.Block.Length(step), c.Limit.TimeToEmpty(most))
	return leakybucket.State{
		Level: restored.Level, At: cmp.Or(restored.At, now), Leak: c.Limit.Leak,
		BlockedUntil: min(s.BlockedUntil, now.Add(longest)), Step: step,
	}
}
