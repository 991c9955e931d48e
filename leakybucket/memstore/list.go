package memstore

import (
	"bytes"
	"context"
	"fmt"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
)

// listedSlots are looked at under one lock at most. That takes some microseconds.
const listedSlots = 1024

// A cursor says from which hash of which shard on a listing goes on. Buckets move in
// their shard, but keep their hashes.
type cursor struct {
	store leakybucket.Instant // when it was made
	shard int
	hash  uint64 // of 32 bits
}

func (c cursor) String() string { return fmt.Sprintf("%x-%x-%x", int64(c.store), c.shard, c.hash) }

func (s *Store) parseCursor(text string) (c cursor, err error) {
	c.store = s.epoch
	if text == "" {
		return c, nil
	}
	var epoch int64
	_, err = fmt.Sscanf(text, "%x-%x-%x", &epoch, &c.shard, &c.hash)
	if c.store = leakybucket.Instant(epoch); err != nil || c.String() != text || c.store != s.epoch || c.shard < 0 || c.shard > len(s.shards) || c.hash >= 1<<32 {
		return c, fmt.Errorf("%w: it is not of this process", store.ErrBadCursor)
	}
	return c, nil
}

// List implements [store.Lister]. Whatever the prefix, it looks at buckets of all
// zones. Each page locks one shard for some microseconds.
func (s *Store) List(ctx context.Context, of store.Filter, from string) ([]store.Entry, string, error) {
	c, err := s.parseCursor(from)
	if err != nil {
		return nil, "", err
	}
	for want := max(of.Scan, 1); c.shard < len(s.shards); {
		if err := ctx.Err(); err != nil {
			return nil, "", err
		}
		found, next, looked := s.shards[c.shard].list(c.hash, min(want, listedSlots), &of, s.now)
		if c.hash = next; next == 1<<32 {
			c.shard, c.hash = c.shard+1, 0
		}
		if want -= looked; len(found) > 0 || want <= 0 { // otherwise go on: shards may be empty
			return found, c.String(), nil
		}
	}
	return nil, "", nil
}

// list returns the buckets that match among those with hashes from first on, and below
// which hash that is, and at how many slots it has looked.
func (sh *shard) list(first uint64, slots int, of *store.Filter, clock func() leakybucket.Instant) (found []store.Entry, next uint64, looked int) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	length := uint64(len(sh.tags))
	if length == 0 {
		return nil, 1 << 32, 0
	}
	begin := sh.home(uint32(first))
	end := begin + slots
	next = 1 << 32
	if uint64(end) < length {
		next = (uint64(end)<<32 + length - 1) / length // the first hash whose home is there
	}
	now := clock()
	prefix := []byte(of.Prefix)
	// Behind the homes come buckets that found theirs taken, up to a free slot.
	for at := begin; looked < len(sh.tags) && (looked < slots || sh.tags[at] != 0); at = sh.after(at) {
		looked++
		slot := &sh.slots[at]
		if sh.tags[at] == 0 || uint64(slot.hash) < first || uint64(slot.hash) >= next || slot.forget() <= now {
			continue
		}
		zone, key := sh.spelled(slot)
		if zone != of.Zone || (slot.zone&shadowBit != 0) != of.Shadow || !bytes.HasPrefix(key, prefix) {
			continue
		}
		kept := store.Entry{Key: string(key), Now: now}
		slot.state(&kept.State)
		found = append(found, kept)
	}
	return found, next, looked
}
