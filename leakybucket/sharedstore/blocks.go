package sharedstore

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
)

const (
	// mostBlocks bounds the copies of blocks. When they are full, the one that ends soonest goes.
	mostBlocks = 200_000

	// trusted is how long the store's word for a block counts, in microseconds. Another node
	// may release the client meanwhile.
	trusted = leakybucket.Instant(1_000_000)

	ever, never = leakybucket.Instant(math.MinInt64), leakybucket.Instant(math.MaxInt64)
)

// blocks are all blocks that this node knows of. Those in its local buckets began in an
// outage, and hold until they end. Those that the store has reported hold while its word
// counts, or while it cannot be asked. A release on this node ends either kind, and an answer
// of the store those that it has reported.
type blocks struct {
	local    *memstore.Store
	reported *memstore.Store // copies
	mu       sync.Mutex      // for changes of these
}

// find returns the block of a charge's bucket, as a probe of the bucket would: one of this
// node's own, or one that was reported since an instant. BlockedUntil is 0 if there is none.
func (b *blocks) find(c *leakybucket.Charge, since leakybucket.Instant) (d leakybucket.Decision) {
	if c.Block == nil || !b.may(c.Zone, c.Key) {
		return d
	}
	state, probe := b.state(c, since), *c
	probe.Cost, probe.Probe = -1, true
	probe.Take(&state, b.local.Now(), &d) // a reload may have made the block shorter
	return d
}

// state returns that of the copies of a bucket which is blocked for longer.
func (b *blocks) state(c *leakybucket.Charge, since leakybucket.Instant) leakybucket.State {
	state := b.local.State(c)
	if copied := b.reported.State(c); copied.BlockedUntil > state.BlockedUntil && copied.At >= since {
		return copied
	}
	return state
}

// may reports, without a lock, whether a block may be found.
func (b *blocks) may(zone, key string) bool {
	return b.local.MayBlock(zone, key) || b.reported.MayBlock(zone, key)
}

// refusing returns a decision for each charge: of those that find refuses, its own, and one that
// fits of the others. It returns nil if all fit.
func (b *blocks) refusing(charges []leakybucket.Charge, since leakybucket.Instant) (found []leakybucket.Decision) {
	for i := range charges {
		if d := b.find(&charges[i], since); d.BlockedUntil != 0 {
			if found == nil {
				found = slices.Repeat([]leakybucket.Decision{{Fits: true}}, len(charges))
			}
			found[i] = d
		}
	}
	return found
}

// learn notes the blocks that the store has reported, and which have ended, when it was asked at
// an instant.
func (b *blocks) learn(charges []leakybucket.Charge, decisions []leakybucket.Decision, asked time.Time) {
	for i := range charges {
		c, d := &charges[i], &decisions[i]
		runs := d.BlockedUntil != 0
		if c.Block == nil || !runs && (!b.reported.MayBlock(c.Zone, c.Key) || b.reported.State(c).BlockedUntil == 0) {
			continue
		}
		b.mu.Lock()
		now := b.local.Now()
		if runs {
			b.reported.Put(c, leakybucket.State{Level: d.Level, At: now, Leak: c.Limit.Leak, BlockedUntil: now.Add(d.BlockedUntil.Sub(d.At)), Step: d.Step})
		} else if b.reported.State(c).At <= now.Add(-time.Since(asked)) { // otherwise it may have begun meanwhile
			_ = b.reported.Reset(context.Background(), c.Zone, c.Key, c.Shadow) // never fails
		}
		b.mu.Unlock()
	}
}

// claim reports whether the caller is the one who asks the store about a block again.
func (b *blocks) claim(c *leakybucket.Charge) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	state, now := b.reported.State(c), b.local.Now()
	if state.BlockedUntil <= now || state.At > now-trusted {
		return false
	}
	state.Level, state.At = c.Limit.Level(state, now), now
	b.reported.Put(c, state)
	return true
}

// withhold returns the charges as they are asked about when some do not fit, whatever the
// answer is: those begin no block, and what is judged with them pours nothing.
func withhold(charges []leakybucket.Charge, found []leakybucket.Decision) []leakybucket.Charge {
	if found == nil {
		return charges
	}
	enforced, all := store.Fit(charges, found)
	if all {
		return charges
	}
	asked := slices.Clone(charges)
	for i := range asked {
		c := &asked[i]
		c.Probe = c.Probe || !enforced || c.Shadow && !all
		if !found[i].Fits {
			c.Block = nil
		}
	}
	return asked
}

// refuse makes refusals of the answers to charges whose buckets are blocked.
func refuse(found, decisions []leakybucket.Decision) {
	for i := range found {
		if d, block := &decisions[i], &found[i]; !block.Fits {
			d.Fits, d.Undecided, d.Local = false, false, d.Local || d.Undecided
			d.BlockedUntil, d.Step = d.At.Add(block.BlockedUntil.Sub(block.At)), block.Step
		}
	}
}

// mark blocks the buckets of a listing of which this node knows blocks. How long they may be, the lister knows.
func (b *blocks) mark(some []store.Entry, of store.Filter, since leakybucket.Instant) {
	for i := range some {
		e, now := &some[i], b.local.Now()
		if known := b.state(&leakybucket.Charge{Zone: of.Zone, Key: e.Key, Shadow: of.Shadow}, since); known.BlockedUntil > now {
			e.State.BlockedUntil, e.State.Step = e.Now.Add(known.BlockedUntil.Sub(now)), known.Step
		}
	}
}

// AnyBlock reports, without a lock, whether this node may know of a block.
func (s *Store) AnyBlock() bool {
	b := s.backend.blocks
	return b.local.AnyBlock() || b.reported.AnyBlock()
}

// MayBlock reports, without a lock, whether this node may know of a block of a bucket of a zone, or
// of any zone if that is empty.
func (s *Store) MayBlock(zone, key string) bool { return s.backend.blocks.may(zone, key) }

// Known returns the block of a charge's bucket that this node knows of, as a probe would, but
// without asking the store. BlockedUntil is 0 if there is none. If the block is not current,
// the store may have ended it: call [Store.Confirm].
func (s *Store) Known(c *leakybucket.Charge) (d leakybucket.Decision, current bool) {
	b := s.backend
	if b.Down() {
		if d = b.blocks.find(c, ever); d.BlockedUntil != 0 {
			d.Level = c.Limit.Level(b.local.State(c), d.At) // which decides when the block is over
		}
		return d, true
	}
	if d = b.blocks.find(c, b.local.Now()-trusted+1); d.BlockedUntil != 0 {
		return d, true
	}
	return b.blocks.find(c, ever), false
}

// Confirm asks the store about a block that is known but not current, unless somebody has
// within the last second. So a block costs at most one call a second, however many requests
// meet it. If the store does not answer, the block stays.
func (s *Store) Confirm(ctx context.Context, c *leakybucket.Charge) {
	if s.backend.blocks.claim(c) {
		probe := *c
		probe.Cost, probe.Probe = -1, true // which fits no bucket, so it begins no block either
		_ = s.Take(ctx, []leakybucket.Charge{probe}, make([]leakybucket.Decision, 1))
	}
}
