package memstore

import (
	"context"
	"fmt"
	"hash/maphash"
	"sync/atomic"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// A Limiter is a [leakybucket.Limiter] whose buckets are in memory: it is faster and never
// fails. It is safe for concurrent use and starts no goroutines.
type Limiter struct {
	limit atomic.Pointer[leakybucket.Limit]
	store *Store
	zone  uint64 // the hash of no zone
}

// NewLimiter returns a limiter, or says what is wrong with the limit.
func NewLimiter(limit leakybucket.Limit, o Options) (*Limiter, error) {
	store := New(o)
	l := &Limiter{store: store, zone: maphash.String(store.hasher.zone, "")}
	return l, l.SetLimit(limit)
}

// Limit returns the limit that holds now.
func (l *Limiter) Limit() leakybucket.Limit { return *l.limit.Load() }

// SetLimit changes the limit of all keys. Their levels stay. It says what is wrong with a
// limit that cannot be used, and changes nothing then.
func (l *Limiter) SetLimit(limit leakybucket.Limit) error {
	if err := limit.Validate(); err != nil {
		return err
	}
	l.limit.Store(&limit)
	return nil
}

// Take pours cost into the bucket of key if it fits. A key longer than 32 KiB never fits.
func (l *Limiter) Take(key string, cost float64) (r leakybucket.Result) {
	l.takeInto(&r, key, cost) // Take is inlined, so that its callers do not copy the result
	return r
}

// takeInto sets the fields of the charge one by one, since a literal is copied, which takes a
// sixth of a decision.
func (l *Limiter) takeInto(r *leakybucket.Result, key string, cost float64) {
	var c leakybucket.Charge
	c.Key, c.Limit, c.Cost = key, *l.limit.Load(), cost
	l.take(&c, &r.Decision)
	c.Explain(r)
}

func (l *Limiter) take(c *leakybucket.Charge, d *leakybucket.Decision) {
	if len(c.Key) <= longestName {
		l.store.takeOne(l.zone^maphash.String(l.store.hasher.key, c.Key), c, d)
	}
}

// Wait blocks until cost fits the bucket of key, as [leakybucket.Limiter.Wait] does.
func (l *Limiter) Wait(ctx context.Context, key string, cost float64) error {
	c, err := l.Limit().Reserve(ctx, cost)
	if err != nil {
		return err
	}
	if len(key) > longestName {
		return fmt.Errorf("waiting for key %.40q: it is longer than %d bytes", key, longestName)
	}
	c.Key = key
	var d leakybucket.Decision
	l.take(&c, &d)
	return c.Await(ctx, &d, l.settle)
}

// Settle corrects a Take by diff once its true cost is known, as [leakybucket.Limiter.Settle]
// does.
func (l *Limiter) Settle(key string, was leakybucket.Result, cost, diff float64) {
	limit := l.Limit()
	l.settle([]leakybucket.Settlement{{
		Charge: leakybucket.Charge{Key: key, Limit: limit, Cost: cost, Debt: limit.Capacity},
		Was:    was.Decision, Diff: diff,
	}})
}

func (l *Limiter) settle(s []leakybucket.Settlement) { _ = l.store.Settle(context.Background(), s) }

// Level returns how full the bucket of key is now, in units of cost. Costs that wait
// count as poured, so the level may be above the capacity.
func (l *Limiter) Level(key string) float64 {
	var d leakybucket.Decision
	l.take(&leakybucket.Charge{Key: key, Limit: l.Limit(), Probe: true}, &d)
	return d.Level
}

// Reset empties the bucket of key.
func (l *Limiter) Reset(key string) { _ = l.store.Reset(context.Background(), "", key, false) }

// Store returns the store behind the limiter, with zone "" and the keys as given:
// for counts, for a changed bound, and for [Store.Shed].
func (l *Limiter) Store() *Store { return l.store }
