package caddymodule

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// A blockTable remembers which keys this process knows to be blocked, for what
// happens outside of the zone's own handlers: refusing a client everywhere, and
// matching requests. It is a memory aid and no store. What it has forgotten, or
// has no room for, is found again when the key next overflows.
type blockTable struct {
	some    atomic.Bool // anything at all: on most sites, most of the time, nothing is
	mu      sync.RWMutex
	blocks  map[bucketName]block
	sweepAt int       // when there are as many, those that are over are dropped
	swept   time.Time // when they were
}

type bucketName struct {
	zone, key string
	shadow    bool
}

// A block is what was known of a bucket when the store last said that it is
// blocked.
type block struct {
	until, at time.Time
	limit     leakybucket.Limit
	level     float64 // at that time, in units of cost
}

const (
	// trusted is how long a block is believed before the store is asked again.
	// Somebody may have reset the bucket, on another node even.
	trusted = time.Second

	mostBlocks = 200_000
)

// blocked outlives configs, as the buckets do.
var blocked blockTable

// note remembers that a charge met a block, or forgets one that is no more.
func (t *blockTable) note(c *leakybucket.Charge, d *leakybucket.Decision) {
	name := bucketName{c.Zone, c.Key, c.Shadow}
	if d.BlockedUntil == 0 {
		if t.some.Load() {
			t.forget(name)
		}
		return
	}
	now := time.Now()
	t.mu.RLock()
	known := now.Sub(t.blocks[name].at) < trusted/2
	t.mu.RUnlock()
	if known && !d.Began {
		return // most of those that are blocked come again at once
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.blocks == nil {
		t.blocks = make(map[bucketName]block)
	}
	t.sweep(now)
	if _, there := t.blocks[name]; there || len(t.blocks) < mostBlocks {
		t.blocks[name] = block{until: now.Add(d.BlockedUntil.Sub(d.At)), at: now, limit: c.Limit, level: d.Level}
		t.some.Store(true)
	}
}

// sweep drops blocks that are over, when they may be half of all; and when the
// table is full, every now and then, since it may stay full for an hour.
func (t *blockTable) sweep(now time.Time) {
	if len(t.blocks) < min(max(t.sweepAt, 1024), mostBlocks) {
		return
	}
	if len(t.blocks) == mostBlocks && now.Sub(t.swept) < trusted {
		return
	}
	for name, b := range t.blocks {
		if !b.until.After(now) {
			delete(t.blocks, name)
		}
	}
	t.sweepAt, t.swept = 2*len(t.blocks), now
}

func (t *blockTable) forget(name bucketName) {
	t.mu.RLock()
	_, there := t.blocks[name]
	t.mu.RUnlock()
	if there {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.blocks, name)
		t.some.Store(len(t.blocks) > 0)
	}
}

// find returns the block that runs for the bucket of a charge. If it has not
// been confirmed for a while, the store is asked, with a cost that fits nowhere
// and begins nothing. A store that does not answer changes nothing.
func (t *blockTable) find(ctx context.Context, store leakybucket.Store, c leakybucket.Charge) (block, bool) {
	if !t.some.Load() {
		return block{}, false
	}
	name := bucketName{c.Zone, c.Key, c.Shadow}
	t.mu.RLock()
	b, there := t.blocks[name]
	t.mu.RUnlock()
	now := time.Now()
	switch {
	case !there:
		return block{}, false
	case !b.until.After(now):
		t.forget(name)
		return block{}, false
	case now.Sub(b.at) < trusted:
		return b, true
	}
	c.Cost, c.Probe = -1, true
	var d [1]leakybucket.Decision
	if err := store.Take(ctx, []leakybucket.Charge{c}, d[:]); err != nil {
		return b, true
	}
	t.note(&c, &d[0])
	if d[0].BlockedUntil == 0 {
		return block{}, false
	}
	return block{until: now.Add(d[0].BlockedUntil.Sub(d[0].At)), at: now, limit: c.Limit, level: d[0].Level}, true
}

// blockOf returns the block that runs for a request's key in the zone, whether
// or not the zone is about the request.
func (z *Zone) blockOf(s *subject, room *keyRoom) (key, block, bool) {
	if z.Block == nil || !blocked.some.Load() {
		return key{}, block{}, false
	}
	if free, err := isNot(z.exempt, s.r); err != nil || !free {
		return key{}, block{}, false
	}
	k, complete := z.keyOf(s, room)
	if !complete || k.rule != leakybucket.Limited {
		return key{}, block{}, false
	}
	b, found := blocked.find(s.r.Context(), z.shared.app.store, leakybucket.Charge{
		Zone: z.Name, Key: k.name, Shadow: !z.enforces(k), Limit: k.limit, Debt: z.debt(k.limit), Block: z.ladder(),
	})
	return k, b, found
}
