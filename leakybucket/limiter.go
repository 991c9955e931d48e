package leakybucket

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// DefaultTimeout is how long a [Limiter] waits for its store where no time is given.
const DefaultTimeout = 50 * time.Millisecond

// A Limiter is one limit for many keys, with a bucket for each in a [Store]. It is safe for
// concurrent use and starts no goroutines. For buckets in memory alone, the Limiter of
// package memstore is faster and never fails.
type Limiter struct {
	store Store
	limit atomic.Pointer[Limit]
	o     LimiterOptions
}

// LimiterOptions are what a [Limiter] may be told. The zero value is ready for use.
type LimiterOptions struct {
	// Zone keeps the buckets apart from those of other limiters of the store. It must not
	// contain a slash.
	Zone string

	// Timeout is how long one call waits for the store. Zero means [DefaultTimeout].
	Timeout time.Duration

	// OnError decides when the store fails. Its decision must be Undecided. If it is nil,
	// the cost fits.
	OnError func(error) Decision
}

// A Result is a [Decision] about a key, with what a refused client is told.
type Result struct {
	Decision
	Remaining float64 // how much still fits after it, in units of cost

	// RetryAfter is how long it takes until the cost fits if nobody else pours.
	// Zero if it fits, or if it can never fit.
	RetryAfter time.Duration
}

// NewLimiter returns a limiter, or says what is wrong with the limit.
func NewLimiter(store Store, limit Limit, o LimiterOptions) (*Limiter, error) {
	if o.Timeout <= 0 {
		o.Timeout = DefaultTimeout
	}
	if o.OnError == nil {
		o.OnError = func(error) Decision { return Decision{Fits: true, Undecided: true} }
	}
	l := &Limiter{store: store, o: o}
	return l, l.SetLimit(limit)
}

// Limit returns the limit that holds now.
func (l *Limiter) Limit() Limit { return *l.limit.Load() }

// SetLimit changes the limit of all keys. Their levels stay. It says what is wrong with a
// limit that cannot be used, and changes nothing then.
func (l *Limiter) SetLimit(limit Limit) error {
	if err := limit.Validate(); err != nil {
		return err
	}
	l.limit.Store(&limit)
	return nil
}

// Take pours cost into the bucket of key if it fits. If the store fails, the result is that
// of LimiterOptions.OnError, and the error says why.
func (l *Limiter) Take(ctx context.Context, key string, cost float64) (r Result, err error) {
	c := Charge{Zone: l.o.Zone, Key: key, Limit: l.Limit(), Cost: cost}
	r.Decision, err = l.take(ctx, &c)
	c.Explain(&r)
	return r, err
}

// takes are charges and decisions of calls, which a store may keep from the stack.
var takes = sync.Pool{New: func() any { return new(oneTake) }}

type oneTake struct {
	charges   [1]Charge
	decisions [1]Decision
}

func (l *Limiter) take(ctx context.Context, c *Charge) (Decision, error) {
	ctx, cancel := context.WithTimeout(ctx, l.o.Timeout)
	defer cancel()
	t := takes.Get().(*oneTake)
	defer takes.Put(t)
	t.charges[0], t.decisions[0] = *c, Decision{}
	if err := l.store.Take(ctx, t.charges[:], t.decisions[:]); err != nil {
		return l.o.OnError(err), err
	}
	*c = t.charges[0] // a store that stands in for a shared one may have changed the limit
	return t.decisions[0], nil
}

// Wait blocks until cost fits the bucket of key. It pours at once, into a bucket that may
// overflow by what leaks until ctx ends, and then waits for its turn. So callers are served
// in the order in which the store saw them, and nothing else fits before them.
//
// If ctx ends first, Wait returns its error and gives the cost back, unless others came after
// it: they wait for as long as they were told, and what is given back would let more in than
// the limit.
//
// If ctx would end before the cost fits, Wait returns an error that wraps
// [context.DeadlineExceeded] at once. A cost that can never fit is an error too. If the store
// fails, Wait returns nil or its error, as LimiterOptions.OnError says.
func (l *Limiter) Wait(ctx context.Context, key string, cost float64) error {
	limit := l.Limit()
	c, err := limit.Reserve(ctx, cost)
	if err != nil {
		return err
	}
	c.Zone, c.Key = l.o.Zone, key
	d, err := l.take(ctx, &c)
	switch {
	case err != nil && d.Fits:
		return nil
	case err != nil:
		return err
	}
	return c.Await(ctx, &d, func(s []Settlement) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.o.Timeout)
		defer cancel()
		_ = l.store.Settle(ctx, s) // the bucket keeps the cost then, as if it had been used
	})
}

// Settle corrects a Take by diff once its true cost is known: by more, up to one capacity of
// debt, or by less if diff is negative. Call it at most once for a result. One without the
// store needs none and changes nothing.
func (l *Limiter) Settle(ctx context.Context, key string, was Result, cost, diff float64) error {
	if was.Undecided {
		return nil
	}
	limit := l.Limit()
	ctx, cancel := context.WithTimeout(ctx, l.o.Timeout)
	defer cancel()
	return l.store.Settle(ctx, []Settlement{{
		Charge: Charge{Zone: l.o.Zone, Key: key, Limit: limit, Cost: cost, Debt: limit.Capacity},
		Was:    was.Decision, Diff: diff,
	}})
}

// Reset empties the bucket of key. It is an error if the store cannot.
func (l *Limiter) Reset(ctx context.Context, key string) error {
	store, ok := l.store.(interface { // store.Resetter
		Reset(ctx context.Context, zone, key string, shadow bool) error
	})
	if !ok {
		return fmt.Errorf("emptying a bucket: a store of type %T cannot", l.store)
	}
	ctx, cancel := context.WithTimeout(ctx, l.o.Timeout)
	defer cancel()
	return store.Reset(ctx, l.o.Zone, key, false)
}
