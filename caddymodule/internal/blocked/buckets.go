// Package blocked remembers which buckets this process knows to be blocked, in bounded memory.
// It depends on no zone. Begin with [Buckets].
package blocked

import (
	"context"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/expiring"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

const (
	// mostBuckets bounds the list. A block that does not fit is noticed again at the
	// bucket's next overflow.
	mostBuckets = 200_000

	// trusted is how long a block counts before the store is asked again. The
	// bucket may have been reset meanwhile, perhaps on another node.
	trusted = time.Second
)

// Buckets is a cache of known blocks. Zones that block a client everywhere and the matcher
// throttle_blocked use it, because they must not ask the store on each request. The store decides which blocks run. It is
// safe for concurrent use. The zero value is not ready for use: call NewBuckets.
type Buckets struct{ blocks *expiring.Map[bucket, Block] }

type bucket struct {
	zone, key string
	shadow    bool
}

func bucketOf(c *leakybucket.Charge) bucket { return bucket{c.Zone, c.Key, c.Shadow != 0} }

// A Block is a known block.
type Block struct {
	Until time.Time
	Seen  time.Time // when the store last said so
	Level float64   // of the bucket then, in units
}

// NewBuckets returns an empty list.
func NewBuckets() *Buckets { return &Buckets{expiring.New[bucket, Block](mostBuckets)} }

// Empty reports, without a lock, whether no block is known at all.
func (l *Buckets) Empty() bool { return l.blocks.Empty() }

// Note adds the block that a decision reports, or removes one that has ended.
func (l *Buckets) Note(now time.Time, c *leakybucket.Charge, d *leakybucket.Decision) {
	if c.Block != nil && d.BlockedUntil != 0 && !d.Began {
		if b, found := l.blocks.Get(bucketOf(c), now); found && now.Sub(b.Seen) < trusted/2 {
			return // most clients that are blocked come again at once
		}
	}
	l.enter(now, c, d)
}

// enter is Note, however fresh the known block is.
func (l *Buckets) enter(now time.Time, c *leakybucket.Charge, d *leakybucket.Decision) {
	if c.Block == nil || d.Undecided {
		return
	}
	if d.BlockedUntil == 0 {
		if !l.Empty() {
			l.blocks.Delete(bucketOf(c))
		}
		return
	}
	until := now.Add(d.BlockedUntil.Sub(d.At))
	l.blocks.Put(bucketOf(c), Block{Until: until, Seen: now, Level: d.Level}, until, now)
}

// Find returns the known block of a charge's bucket. fresh reports whether the
// store confirmed it within the last second.
func (l *Buckets) Find(now time.Time, c *leakybucket.Charge) (b Block, found, fresh bool) {
	if l.Empty() {
		return Block{}, false, false
	}
	b, found = l.blocks.Get(bucketOf(c), now)
	return b, found, found && now.Sub(b.Seen) < trusted
}

// Believe returns the known block of a charge's bucket. If the block is not
// fresh, one caller asks the store while others use the old answer. So a block
// costs at most one call a second, however many requests meet it. If the store
// does not answer, the block stays.
func (l *Buckets) Believe(ctx context.Context, now time.Time, c *leakybucket.Charge, store leakybucket.Store) (Block, bool) {
	b, found, fresh := l.Find(now, c)
	if !found || fresh {
		return b, found
	}
	l.confirm(ctx, now, *c, store)
	b, found, _ = l.Find(now, c)
	return b, found
}

// confirm asks the store with a cost that fits no bucket, so it pours nothing and
// begins no block.
func (l *Buckets) confirm(ctx context.Context, now time.Time, c leakybucket.Charge, store leakybucket.Store) {
	mine := false
	l.blocks.Update(bucketOf(&c), now, func(b Block, found bool) (Block, time.Time, bool) {
		if mine = found && now.Sub(b.Seen) >= trusted; mine {
			b.Level = c.Limit.Level(leakybucket.State{Level: b.Level}, leakybucket.Instant(now.Sub(b.Seen).Microseconds()))
			b.Seen = now // nobody else need ask
		}
		return b, b.Until, found
	})
	if !mine {
		return
	}
	c.Cost, c.Probe = -1, true
	var d [1]leakybucket.Decision
	if err := store.Take(ctx, []leakybucket.Charge{c}, d[:]); err == nil {
		l.enter(now, &c, &d[0])
	}
}

// Forget removes what is known of a bucket that was reset.
func (l *Buckets) Forget(zone, key string, shadow bool) {
	if !l.Empty() {
		l.blocks.Delete(bucket{zone, key, shadow})
	}
}
