package caddymodule

import (
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	bucketkey "github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

// A blockTable remembers which keys this process knows to be blocked, for what
// happens outside of the zone's own handlers: refusing a client everywhere, and
// matching requests. It is a memory aid and no store. What it has forgotten, or
// has no room for, is found again when the key next overflows.
type blockTable struct {
	some   atomic.Bool // anything at all: on most sites, most of the time, nothing is
	mu     sync.RWMutex
	blocks map[bucketName]block
	broom  broom
}

// A broom says when to look through a table for what is over and may be dropped:
// when that may be half of all; and when the table is full, every now and then,
// since it may stay full for an hour.
type broom struct {
	at   int       // how many there must be
	last time.Time // when it was done
}

const (
	mostKept   = 200_000 // in a table
	sweepEvery = time.Second
)

func (b *broom) due(kept int, now time.Time) bool {
	if kept >= mostKept {
		return now.Sub(b.last) >= sweepEvery
	}
	return kept >= max(b.at, 1024)
}

func (b *broom) done(kept int, now time.Time) { b.at, b.last = 2*kept, now }

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

// trusted is how long a block is believed before the store is asked again.
// Somebody may have reset the bucket, on another node even.
const trusted = time.Second

// blockTables keeps the table over reloads, as long as the buckets.
var blockTables = caddy.NewUsagePool()

// Destruct implements caddy.Destructor.
func (*blockTable) Destruct() error { return nil }

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
	if t.broom.due(len(t.blocks), now) {
		maps.DeleteFunc(t.blocks, func(_ bucketName, b block) bool { return !b.until.After(now) })
		t.broom.done(len(t.blocks), now)
	}
	if _, there := t.blocks[name]; there || len(t.blocks) < mostKept {
		t.blocks[name] = block{until: now.Add(d.BlockedUntil.Sub(d.At)), at: now, limit: c.Limit, level: d.Level}
		t.some.Store(true)
	}
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
func (t *blockTable) find(s *subject, app *App, c leakybucket.Charge) (block, bool) {
	b, found, fresh := t.known(&c)
	if !found || fresh {
		return b, found
	}
	c.Cost, c.Probe = -1, true
	d, err := app.takeOne(s, c)
	if err != nil {
		return b, true
	}
	t.note(&c, &d)
	b, found, _ = t.known(&c)
	return b, found
}

// known returns the block of a charge's bucket, if one is known that is not over
// yet, and whether it has been confirmed of late.
func (t *blockTable) known(c *leakybucket.Charge) (b block, found, fresh bool) {
	if !t.some.Load() {
		return block{}, false, false
	}
	name := bucketName{c.Zone, c.Key, c.Shadow}
	t.mu.RLock()
	b, found = t.blocks[name]
	t.mu.RUnlock()
	now := time.Now()
	if found && !b.until.After(now) {
		t.forget(name)
		return block{}, false, false
	}
	return b, found, found && now.Sub(b.at) < trusted
}

// knownBlocked reports whether a charge need not be asked, since it is known to
// meet a block. While the store is down, that is believed until it ends.
func (a *App) knownBlocked(c *leakybucket.Charge) (block, bool) {
	if a.remote == nil || c.Block == nil {
		return block{}, false
	}
	b, found, fresh := a.blocks.known(c)
	return b, found && (fresh || a.remote.breaker.isOpen())
}

// blockOf returns the block that runs for a request's key in the zone, whether
// or not the zone is about the request, and a charge that names its bucket.
func (z *Zone) blockOf(s *subject, room *keyRoom) (c leakybucket.Charge, b block, found bool) {
	app := z.shared.app
	if z.Block == nil || !app.blocks.some.Load() {
		return c, b, false
	}
	if free, err := isNot(z.exempt, s.r); err != nil || !free {
		return c, b, false
	}
	k, complete := z.keyOf(s, room)
	if !complete || k.rule != bucketkey.Limited {
		return c, b, false
	}
	c = leakybucket.Charge{
		Zone: z.Name, Key: k.name, Shadow: !z.enforces(k), Limit: k.limit, Debt: z.debt(k.limit), Block: z.ladder(),
	}
	b, found = app.blocks.find(s, app, c)
	return c, b, found
}
