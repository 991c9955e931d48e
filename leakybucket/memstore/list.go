package memstore

import (
	"bytes"
	"context"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// listedSlots are looked at under one lock. That takes some microseconds.
const listedSlots = 1024

// List implements [leakybucket.Lister]. It looks at all buckets of the store,
// whatever the prefix, and locks a shard for some microseconds at a time.
func (s *Store) List(ctx context.Context, zone, prefix string, shadow bool, yield func(leakybucket.Kept) bool) error {
	var found []leakybucket.Kept
	for i := range s.shards {
		for next, more := 0, true; more; {
			if err := ctx.Err(); err != nil {
				return err
			}
			found, next, more = s.shards[i].list(found[:0], next, []byte(zone), []byte(prefix), shadow, s.now)
			for _, kept := range found {
				if !yield(kept) {
					return nil
				}
			}
		}
	}
	return nil
}

// list appends the buckets that match from the next slots.
func (sh *shard) list(found []leakybucket.Kept, first int, zone, prefix []byte, shadow bool, clock func() leakybucket.Instant) (_ []leakybucket.Kept, next int, more bool) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := clock()
	next = min(first+listedSlots, len(sh.tags))
	for at := first; at < next; at++ {
		if sh.tags[at] == 0 || sh.slots[at].forget() <= now {
			continue
		}
		of, key, shadowed := sh.name(&sh.slots[at])
		if shadowed != shadow || !bytes.Equal(of, zone) || !bytes.HasPrefix(key, prefix) {
			continue
		}
		kept := leakybucket.Kept{Key: string(key), Now: now}
		sh.slots[at].state(&kept.State)
		found = append(found, kept)
	}
	return found, next, next < len(sh.tags)
}
