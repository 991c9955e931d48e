package memstore

import (
	"hash/maphash"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// A Limiter is a [leakybucket.Limiter] whose buckets are in memory. Its Take is faster and
// never fails. It is safe for concurrent use and starts no goroutines.
type Limiter struct {
	*leakybucket.Limiter
	store *Store
	zone  uint64 // the hash of no zone
}

// NewLimiter returns a limiter, or says what is wrong with the limit.
func NewLimiter(limit leakybucket.Limit, o Options) (*Limiter, error) {
	store := New(o)
	general, err := leakybucket.NewLimiter(store, limit, leakybucket.LimiterOptions{
		OnError: func(error) leakybucket.Decision { return leakybucket.Decision{Undecided: true} }, // too long a key
	})
	return &Limiter{general, store, maphash.String(store.hasher.zone, "")}, err
}

// Take pours cost into the bucket of key if it fits. A cost of 0 asks for the level and
// changes nothing. A key longer than 32 KiB never fits.
func (l *Limiter) Take(key string, cost float64) (r leakybucket.Result) {
	l.takeInto(&r, key, cost) // Take is inlined, so that its callers do not copy the result
	return r
}

// takeInto sets the fields of the charge one by one, since a literal is copied, which takes a
// sixth of a decision.
func (l *Limiter) takeInto(r *leakybucket.Result, key string, cost float64) {
	var c leakybucket.Charge
	c.Key, c.Limit, c.Cost = key, l.Limit(), cost
	if len(key) <= longestName {
		l.store.takeOne(l.zone^maphash.String(l.store.hasher.key, key), &c, &r.Decision)
	}
	c.Explain(r)
}

// Store returns the store behind the limiter, with zone "" and the keys as given:
// for counts, for a changed bound, and for [Store.Shed].
func (l *Limiter) Store() *Store { return l.store }
