package sharedstore

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// A watch follows, during an outage, the buckets of requests that may be blocked, as
// if each had its whole limit and nobody but this node poured into it. A node that has
// a share of the limits begins blocks here alone: what overflows a share may be within
// the limit. A bucket that has no room in the table is judged by what was known of it
// before the outage.
type watch struct {
	mu      sync.Mutex
	buckets *table[watched]
}

type watched struct {
	state leakybucket.State // on the clock of this node's own store
	limit leakybucket.Limit
	debt  float64
	until time.Time
}

// most bounds the watch, and the releases that the store is not told of yet.
const most = 100_000

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

// judgeWhole decides charges to whole buckets as if the store were this node's alone, and
// leaves the charges to their shares so that what it refuses by a block fits in no share.
func (s *Store) judgeWhole(charges, shares []leakybucket.Charge) []leakybucket.Decision {
	if len(charges) == 0 {
		return nil
	}
	b, now := s.backend, time.Now()
	b.watch.mu.Lock()
	defer b.watch.mu.Unlock()
	states, decisions := make([]leakybucket.State, len(charges)), make([]leakybucket.Decision, len(charges))
	for i := range charges {
		charges[i].Probe = shares[i].Probe
		states[i] = s.whole(&charges[i], now)
	}
	leakybucket.TakeAll(charges, states, b.local.Now(), decisions)
	for i := range charges {
		c := &charges[i]
		until := s.longest(c, &states[i], now)
		b.watch.buckets.Put(bucketOf(c), watched{states[i], c.Limit, c.Debt, until}, until, now)
		if decisions[i].BlockedUntil != 0 {
			shares[i].Cost = -1 // fits nowhere, and begins nothing
		}
		shares[i].Block = nil // what overflows a share is no overflow of the limit
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

// forget drops a bucket whose level the store has shown.
func (w *watch) forget(name bucket) {
	if !w.buckets.Empty() {
		w.buckets.Delete(name)
	}
}

// whole returns what is known of a whole bucket.
func (s *Store) whole(c *leakybucket.Charge, now time.Time) leakybucket.State {
	b := s.backend
	if known, found := b.watch.buckets.Get(bucketOf(c), now); found {
		return known.state
	}
	share := *c
	s.share(&share)
	state := b.local.State(&share)
	state.Level, state.At, state.Leak = b.localLevel(&share)*s.nodes, b.local.Now(), c.Limit.Leak
	if e, found := b.ledger.Get(bucketOf(c), now); found {
		e.advance(now)
		state.Level = max(0, e.seen+e.own+e.sent)
	}
	return state
}

// longest returns until when a whole bucket is watched: until its share is empty, too,
// from whose level it would begin again.
func (s *Store) longest(c *leakybucket.Charge, state *leakybucket.State, now time.Time) time.Time {
	share := *c
	s.share(&share)
	kept := share.Limit.TimeToEmpty(share.Limit.Capacity + share.Debt)
	return now.Add(max(kept, c.Expiry(state).Sub(s.backend.local.Now())))
}

// settle corrects a watched bucket as its share is corrected.
func (w *watch) settle(of leakybucket.Settlement, now leakybucket.Instant) {
	if w.buckets.Empty() {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.buckets.Update(bucketOf(&of.Charge), time.Now(), func(known watched, found bool) (watched, time.Time, bool) {
		of.Charge.Limit, of.Charge.Debt, of.Charge.Block = known.limit, known.debt, nil
		if of.Cancel {
			of.Cancel, of.Diff = false, -of.Charge.Cost
		}
		known.state = of.Apply(known.state, now)
		return known, known.until, found
	})
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
	s.enter(&share, now, func(e entry) entry {
		e = e.withLimit(whole)
		e.blocked, e.step = now.Add(rest), d.Step
		return e
	})
}

// untold returns the blocks of charges that the store has not confirmed yet, or nil if
// there are none.
func (s *Store) untold(charges []leakybucket.Charge) (blocks []entry) {
	b := s.backend
	if b.ledger.Empty() {
		return nil
	}
	now := time.Now()
	for i := range charges {
		c := &charges[i]
		if e, found := b.ledger.Get(bucketOf(c), now); found && c.Block != nil && e.blocked.After(now) && s.zone(c.Zone).Policy == Local {
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
