package memstore

import (
	"hash/maphash"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/internal/door"
)

// OpenZone is for [leakybucket.Limiter], which takes one charge at a time.
func (s *Store) OpenZone(name string) door.Zone {
	return &zone{s, name, maphash.String(s.hasher.zone, name)}
}

type zone struct {
	store *Store
	name  string
	hash  uint64
}

// Take sets the fields of the charge one by one, since a literal is copied.
func (z *zone) Take(key string, capacity, leak, cost float64) (level float64, at int64, fits, asked bool) {
	if tooLong(z.name, key) {
		return 0, 0, false, false
	}
	var c leakybucket.Charge
	var d leakybucket.Decision
	c.Zone, c.Key, c.Limit.Capacity, c.Limit.Leak, c.Cost = z.name, key, capacity, leak, cost
	z.store.takeOne(z.hash^maphash.String(z.store.hasher.key, key), &c, &d, 0)
	return d.Level, int64(d.At), d.Fits, true
}
