package sharedstore

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
)

// mostBlocks bounds the copies of blocks. When they are full, the one that ends soonest goes.
const mostBlocks = 100_000

// blocks are those that this node knows of. Its own began in an outage, in its local
// buckets, and hold until they end. Those that the store has reported hold in an outage;
// otherwise the store decides, since another node may have released the client.
type blocks struct {
	local    *memstore.Store
	reported *memstore.Store // copies, with no level

	// When the last one ends at the latest. While none runs, no bucket is looked up.
	lastOwn, lastReported atomic.Int64
}

func newBlocks(local *memstore.Store) *blocks {
	return &blocks{local: local, reported: memstore.New(memstore.Options{MaxBuckets: mostBlocks, Clock: local.Now})}
}

// A hold is the rest of a block that runs. The zero hold is none.
type hold struct {
	rest time.Duration
	step uint8
}

// running returns the blocks that hold for charges, or nil if none does.
func (b *blocks) running(charges []leakybucket.Charge, outage bool) (held []hold) {
	now := b.local.Now()
	own, reported := b.lastOwn.Load() > int64(now), outage && b.lastReported.Load() > int64(now)
	if !own && !reported {
		return nil
	}
	for i := range charges {
		c := &charges[i]
		if c.Block == nil {
			continue
		}
		state := b.local.State(c)
		if reported {
			if other := b.reported.State(c); other.BlockedUntil > state.BlockedUntil {
				state = other
			}
		}
		if state.BlockedUntil > now {
			if held == nil {
				held = make([]hold, len(charges))
			}
			held[i] = hold{state.BlockedUntil.Sub(now), state.Step}
		}
	}
	return held
}

// began notes the end of a block that a local bucket has begun.
func (b *blocks) began(d *leakybucket.Decision) {
	if d.Began {
		raise(&b.lastOwn, d.BlockedUntil)
	}
}

// learn notes which blocks the store reports, and which have ended.
func (b *blocks) learn(charges []leakybucket.Charge, decisions []leakybucket.Decision) {
	for i := range charges {
		c, d := &charges[i], &decisions[i]
		now := b.local.Now()
		switch {
		case c.Block == nil:
		case d.BlockedUntil != 0:
			state := leakybucket.State{At: now, Leak: c.Limit.Leak, BlockedUntil: now.Add(d.BlockedUntil.Sub(d.At)), Step: d.Step}
			if b.reported.State(c).BlockedUntil < state.BlockedUntil-leakybucket.Instant(time.Second.Microseconds()) {
				b.reported.Put(c, state)
				raise(&b.lastReported, state.BlockedUntil)
			}
		case b.lastReported.Load() > int64(now):
			_ = b.reported.Reset(context.Background(), c.Zone, c.Key, c.Shadow) // never fails
		}
	}
}

// forget removes the copy of a block that was released. Its own is in the local bucket.
func (b *blocks) forget(ctx context.Context, zone, key string, shadow bool) {
	_ = b.reported.Reset(ctx, zone, key, shadow) // never fails
}

func raise(to *atomic.Int64, end leakybucket.Instant) {
	for was := to.Load(); was < int64(end) && !to.CompareAndSwap(was, int64(end)); was = to.Load() {
	}
}

// withheld returns the charges as the store is asked: those that are held, and what is judged
// with them, pour nothing.
func withheld(charges []leakybucket.Charge, held []hold) []leakybucket.Charge {
	if held == nil {
		return charges
	}
	asked := slices.Clone(charges)
	for i, h := range held {
		if h.rest == 0 {
			continue
		}
		asked[i].Block = nil
		for j := range asked {
			asked[j].Probe = asked[j].Probe || asked[j].Shadow || !asked[i].Shadow
		}
	}
	return asked
}

// refuse makes the decisions of charges that are held refusals.
func refuse(held []hold, decisions []leakybucket.Decision) {
	for i, h := range held {
		if d := &decisions[i]; h.rest > 0 && !(d.Undecided && !d.Fits) {
			d.Local = d.Local || d.Undecided
			d.Fits, d.Poured, d.Undecided = false, false, false
			d.BlockedUntil, d.Step = d.At.Add(h.rest), h.step
		}
	}
}
