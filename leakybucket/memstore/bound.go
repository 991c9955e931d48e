package memstore

import (
	"sync/atomic"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// room bounds how many buckets a store keeps. All shards share the bound, so no
// live bucket is dropped while there is room in another shard.
type room struct {
	most      atomic.Int64 // buckets that may be kept
	used      atomic.Int64 // buckets kept, and places reserved for new ones
	evictions atomic.Uint64

	// soonest is, for each shard, an instant before which none of its buckets may
	// be forgotten. It is written under the lock of the shard.
	soonest []atomic.Int64

	blocks blocks
}

// blocks are instants at which no block runs any longer, to be read without a lock.
type blocks struct {
	hasher hasher
	last   atomic.Int64          // for all buckets
	ends   func() []atomic.Int64 // for those of a name, and those of a key, whose hashes end alike; made when first asked for
}

// end returns the instant for the buckets of a name, or of a key if the zone is empty.
func (b *blocks) end(zone, key string) *atomic.Int64 {
	ends := b.ends()
	return &ends[b.hasher.charge(&leakybucket.Charge{Zone: zone, Key: key})&uint64(len(ends)-1)]
}

// add notes that a bucket is blocked until an instant.
func (b *blocks) add(c *leakybucket.Charge, until leakybucket.Instant) {
	for _, end := range []*atomic.Int64{b.end(c.Zone, c.Key), b.end("", c.Key), &b.last} {
		for last := end.Load(); last < int64(until); last = end.Load() {
			end.CompareAndSwap(last, int64(until))
		}
	}
}

// reserve reserves n places, if there are so many.
func (r *room) reserve(n int) bool {
	for {
		used := r.used.Load()
		if used+int64(n) > r.most.Load() {
			return false
		}
		if r.used.CompareAndSwap(used, used+int64(n)) {
			return true
		}
	}
}

// release gives n places back.
func (r *room) release(n int) {
	if n > 0 {
		r.used.Add(int64(-n))
	}
}

// first returns the shard with the bucket that may be forgotten soonest, and an
// instant before which none of the others may forget one. It returns false if
// there is no bucket.
func (r *room) first() (shard int, others leakybucket.Instant, ok bool) {
	first, second := int64(never), int64(never)
	for i := range r.soonest {
		switch soonest := r.soonest[i].Load(); {
		case soonest < first:
			shard, first, second = i, soonest, first
		case soonest < second:
			second = soonest
		}
	}
	return shard, leakybucket.Instant(second), first != int64(never)
}

// SetMaxBuckets changes the bound and drops the buckets over it. A bound below 1
// counts as 1. The number of shards stays as it was made: a store whose bound is
// raised more than tenfold is slower than a new one.
func (s *Store) SetMaxBuckets(n int) {
	s.room.most.Store(int64(max(1, n)))
	s.trim()
}

// trim drops the buckets over the bound.
func (s *Store) trim() {
	for s.room.used.Load() > s.room.most.Load() {
		if !s.drop() {
			return
		}
	}
}

// makeRoom reserves n places, and drops as many buckets as that needs. No lock
// may be held. If there is nothing to drop it exceeds the bound, and the caller
// must trim afterwards.
func (s *Store) makeRoom(n int) {
	for !s.room.reserve(n) {
		if !s.drop() {
			s.room.used.Add(int64(n))
			return
		}
	}
}

// drop drops buckets that may be forgotten, if there is one in the store, else
// the one that may be soonest. It returns false if there is none.
//
// The bound of a shard may be out of date, so a few are looked at before one
// is believed.
func (s *Store) drop() bool {
	for try := range 4 {
		i, others, ok := s.room.first()
		if !ok {
			return false
		}
		if try == 3 {
			others = never
		}
		if s.shards[i].drop(others, s.now) {
			break
		}
	}
	return true
}
