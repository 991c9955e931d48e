package memstore

import (
	"hash/maphash"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/internal/door"
)

// OpenZone is for [leakybucket.Limiter], which takes one charge at a time, and no long keys.
func (s *Store) OpenZone(name string) door.Zone {
	return &zone{s, name, maphash.String(s.hasher.zone, name)}
}

type zone struct {
	store *Store
	name  string
	hash  uint64
}

// Take implements door.Zone. A bucket that is not kept, or not plain, is a charge's as any.
func (z *zone) Take(key string, capacity, leak, cost float64) (level float64, at int64, fits bool) {
	s, limit := z.store, leakybucket.Limit{Capacity: capacity, Leak: leak}
	hash := z.hash ^ maphash.String(s.hasher.key, key)
	sh := &s.shards[hash>>s.shift]
	now := s.lockOne(sh)
	in, kept := sh.find(hash, z.name, key, false)
	if !kept || !sh.slots[in].plain(leak, now) {
		var d leakybucket.Decision
		s.takeIn(sh, hash, in, kept, &leakybucket.Charge{Zone: z.name, Key: key, Limit: limit, Cost: cost}, &d, now, 0)
		return d.Level, int64(d.At), d.Fits
	}
	level, fits = sh.takePlain(in, limit, cost, now)
	sh.mu.Unlock()
	return level, int64(now), fits
}
