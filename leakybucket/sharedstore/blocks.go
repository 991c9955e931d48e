package sharedstore

import (
	"context"
	"slices"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// blocks reports whether one of the charges that are decided by this node's share may
// begin a block.
func (s *Store) blocks(charges []leakybucket.Charge) bool {
	for i := range charges {
		if c := &charges[i]; s.nodes > 1 && c.Block != nil && s.zone(c.Zone).Policy == Local {
			return true
		}
	}
	return false
}

// judgeWhole decides charges to whole buckets, of which the ledger keeps the states, and
// leaves the charges to their shares so that what it refuses by a block fits in no share. A
// node that has a share of the limits begins blocks here alone: what overflows a share may
// be within the limit.
func (s *Store) judgeWhole(charges, shares []leakybucket.Charge) []leakybucket.Decision {
	if len(charges) == 0 {
		return nil
	}
	b, now, at := s.backend, time.Now(), s.backend.local.Now()
	b.ledger.mu.Lock()
	defer b.ledger.mu.Unlock()
	states, decisions := make([]leakybucket.State, len(charges)), make([]leakybucket.Decision, len(charges))
	for i := range charges {
		charges[i].Probe = shares[i].Probe
		states[i] = s.whole(&charges[i], &shares[i], now)
	}
	leakybucket.TakeAll(charges, states, at, decisions)
	for i := range charges {
		c, share := &charges[i], &shares[i]
		e := b.ledger.find(bucketOf(c), now)
		if e != nil && (e.wholeUntil.After(now) || len(b.ledger.entries) <= mostWatched) {
			// Until the share is empty, too, from whose level it would begin again.
			empty := share.Limit.TimeToEmpty(share.Limit.Capacity + share.Debt)
			e.setLimit(c)
			e.share = share.Limit.Leak
			e.whole, e.wholeUntil = states[i], now.Add(max(empty, c.Expiry(&states[i]).Sub(at)))
		}
		if decisions[i].BlockedUntil != 0 {
			share.Cost = -1 // fits nowhere, and begins nothing
		}
		share.Block = nil // what overflows a share is no overflow of the limit
	}
	return decisions
}

// heedWhole makes the decision of a share heed the block of the whole bucket.
func (s *Store) heedWhole(d *leakybucket.Decision, whole *leakybucket.Charge, w *leakybucket.Decision) {
	if w.BlockedUntil == 0 {
		return
	}
	d.BlockedUntil, d.Step, d.Began = d.At.Add(w.BlockedUntil.Sub(w.At)), w.Step, w.Began
	if w.Began {
		s.block(whole, w)
	}
}

// whole returns what is known of a whole bucket. Without an entry in the ledger, that is no
// more than a block: then the share decides, and no block begins.
func (s *Store) whole(c, share *leakybucket.Charge, now time.Time) leakybucket.State {
	b := s.backend
	e := b.ledger.find(bucketOf(c), now)
	if e != nil && e.wholeUntil.After(now) {
		return e.whole
	}
	state := b.local.State(share)
	state.Level, state.At, state.Leak = 0, b.local.Now(), c.Limit.Leak
	if e != nil {
		state.Level = max(0, e.seen+e.own+e.sent)
	}
	return state
}

// block makes this node's own bucket, and the ledger, remember a block that a charge to
// the whole bucket has begun.
func (s *Store) block(whole *leakybucket.Charge, d *leakybucket.Decision) {
	b, share, rest, now := s.backend, *whole, d.BlockedUntil.Sub(d.At), time.Now()
	s.share(&share)
	if s.nodes > 1 {
		told := leakybucket.Settlement{Charge: share, BlockRest: rest, BlockStep: d.Step}
		_ = b.local.Settle(context.Background(), []leakybucket.Settlement{told}) // fails for no key that it has
	}
	s.enter(&share, now, func(e *entry) {
		e.setLimit(whole)
		e.blocked, e.step = now.Add(rest), d.Step
	})
}

// untold returns the blocks of charges that the store has not confirmed yet, or nil if
// there are none.
func (s *Store) untold(charges []leakybucket.Charge, now time.Time) (blocks []entry) {
	if s.backend.ledger.empty() {
		return nil
	}
	for i := range charges {
		c := &charges[i]
		if c.Block == nil || s.zone(c.Zone).Policy != Local {
			continue
		}
		if e, found := s.backend.ledger.get(bucketOf(c), now); found && e.blocked.After(now) {
			if blocks == nil {
				blocks = make([]entry, len(charges))
			}
			blocks[i] = e
		}
	}
	return blocks
}

// heed returns the charges to ask the store for while it does not know of some blocks:
// what they refuse is asked with probes.
func heed(charges []leakybucket.Charge, blocks []entry) []leakybucket.Charge {
	asked := slices.Clone(charges)
	for i := range asked {
		for j := range charges {
			in := charges[j].Shadow
			asked[i].Probe = asked[i].Probe || !blocks[j].blocked.IsZero() && (in == 0 || in == asked[i].Shadow)
		}
	}
	return asked
}

// refuse makes a decision of the store one that heeds a block.
func (e *entry) refuse(d *leakybucket.Decision, now time.Time) {
	until := d.At.Add(e.blocked.Sub(now))
	d.Fits, d.Poured, d.Began = false, false, false
	if until > d.BlockedUntil {
		d.BlockedUntil, d.Step = until, max(d.Step, e.step)
	}
}
