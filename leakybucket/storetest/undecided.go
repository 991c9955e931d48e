package storetest

import (
	"math"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// forgettable reports whether a store may have forgotten the bucket, which was
// empty once since its last write. By an earlier clock that can be told.
func (b *modelled) forgettable() bool { return b.forget <= b.latest }

// forgotten reports whether it can be told that a store has forgotten the
// bucket, if it has.
func (m *modeller) forgotten(c leakybucket.Charge) bool {
	b := m.bucket(c)
	if b.forgettable() && (c.Limit.Level(b.State, m.now) > 0 || b.At > m.now) {
		return true
	}
	return (b.forgettable() || b.stale) && b.BlockedUntil != 0 && c.Block != nil && m.now < b.BlockedUntil+stepOf(c, b.State)
}

// stepOf returns how long the block of a bucket is by the charge's ladder, or 0
// if that is not given.
func stepOf(c leakybucket.Charge, s leakybucket.State) leakybucket.Instant {
	if len(c.Block.Steps) == 0 {
		return 0
	}
	return leakybucket.Instant(0).Add(c.Block.Steps[min(int(s.Step), len(c.Block.Steps)-1)])
}

// onEdge reports whether a rounding decides if a block runs, or is further
// ahead than it can be, or is long enough ago.
func (m *modeller) onEdge(c leakybucket.Charge) bool {
	b := m.bucket(c)
	if b.BlockedUntil == 0 || c.Block == nil {
		return false
	}
	edges := []leakybucket.Instant{0}
	if length := stepOf(c, b.State); length == 0 {
		edges = append(edges, leakybucket.Instant((c.Limit.Capacity+c.Debt)/c.Limit.Leak*1e6))
	} else if edges = append(edges, -length); b.block != c.Block {
		edges = append(edges, length) // a block that begins now is just as long as it can be
	}
	for _, edge := range edges {
		if off := b.BlockedUntil - m.now - edge; -5 <= off && off <= 5 {
			return true
		}
	}
	return false
}

// undecided reports whether a store may answer one of the charges either way,
// of which all but the last are decided if they stand alone.
func (m *modeller) undecided(all []leakybucket.Charge) bool {
	c := all[len(all)-1]
	if m.forgotten(c) || m.onEdge(c) {
		return true
	}
	level := c.Limit.Level(m.bucket(c).State, m.now)
	sum := 0.0
	for _, other := range all {
		if bucketOf(other) == bucketOf(c) {
			sum += other.Cost
		}
	}
	for _, other := range all {
		if bucketOf(other) != bucketOf(c) {
			continue
		}
		edge := c.Limit.Below(other.Ceiling).Capacity
		if sum > 0 {
			edge *= 1 + 1e-9
		}
		if math.Abs(level+sum-edge) <= tolerance(c.Limit) {
			return true
		}
	}
	return false
}
