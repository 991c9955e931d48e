package leakybucket

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/internal/door"
	bucketkey "github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

const (
	defaultTimeout = 50 * time.Millisecond

	// longestKey is how long a key may be, in bytes, before a digest replaces it. It bounds how much
	// one client can make a store keep.
	longestKey = 256

	longestZone = 100
)

// A Limiter is one limit for many keys, with a bucket for each in a [Store]. It is safe for
// concurrent use and starts no goroutines.
type Limiter struct {
	store Store
	zone  door.Zone // of a store in memory; otherwise nil
	limit atomic.Pointer[Limit]
	o     LimiterOptions
}

// LimiterOptions are the options of a [Limiter]. The zero value is ready for use.
type LimiterOptions struct {
	// Zone keeps the buckets apart from those of other limiters of the store. It has at most
	// 100 letters, digits, _, . and -.
	Zone string

	// Timeout is how long one call waits for the store. Zero or less means the timeout of a store
	// that has one, as in package sharedstore, and otherwise 50 ms.
	Timeout time.Duration

	// FailClosed refuses every cost while the store fails. Otherwise every cost fits then. A store
	// of package sharedstore does not fail: its policies decide then, by default a share of the
	// limit for each process.
	FailClosed bool
}

// A Result says what became of a cost, and what a client that is refused may be told.
type Result struct {
	Fits      bool    // the cost was poured
	Level     float64 // how full the bucket is now, in units of cost
	Remaining float64 // how much still fits now, in units of cost

	// RetryAfter is how long it takes until the cost fits if nobody else pours.
	// Zero if it fits, or if it can never fit.
	RetryAfter time.Duration

	// Undecided says that the store could not be asked. Fits is then what the options say, and
	// nothing else is known.
	Undecided bool

	local bool // decided by this node in place of the store
	at    Instant
	cost  float64 // that was asked for
	limit Limit
}

// Limit returns the limit under which the cost was decided, or the zero Limit if it was not.
func (r *Result) Limit() Limit { return r.limit }

// NewLimiter returns a limiter with its buckets in a store, such as memstore.New. It says what
// is wrong with the store, the limit or the options.
func NewLimiter(store Store, limit Limit, o LimiterOptions) (*Limiter, error) {
	if len(o.Zone) > longestZone || strings.ContainsFunc(o.Zone, isNoZone) {
		return nil, fmt.Errorf("invalid zone %.100q: want at most %d letters, digits, _, . and -", o.Zone, longestZone)
	}
	if store == nil {
		return nil, errors.New("invalid store nil: want one, such as memstore.New returns")
	}
	if timed, is := store.(interface{ Timeout() time.Duration }); is && o.Timeout <= 0 {
		o.Timeout = timed.Timeout()
	}
	o.Timeout = cmp.Or(max(0, o.Timeout), defaultTimeout)
	l := &Limiter{store: store, o: o}
	if memory, is := store.(door.Opener); is {
		l.zone = memory.OpenZone(store, o.Zone)
	}
	if err := l.SetLimit(limit); err != nil {
		return nil, err
	}
	return l, nil
}

func isNoZone(r rune) bool {
	return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("_.-", r))
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

// Allow is Take of a cost of 1, for callers who want to know no more.
func (l *Limiter) Allow(key string) bool {
	r, _ := l.Take(context.Background(), key, 1)
	return r.Fits
}

// Take pours cost into the bucket of key if it fits. A cost of 0 asks for the level and
// changes nothing. A negative cost and NaN never fit.
//
// If the store fails, the result is as LimiterOptions.FailClosed says, and the error says why.
// So callers may ignore the error. If ctx ends first, nothing fits, and the error is that of
// ctx. With a store in memory there are no errors. Of a key of more than 256 bytes, the store
// keeps the SHA-256.
func (l *Limiter) Take(ctx context.Context, key string, cost float64) (r Result, err error) {
	err = l.take(ctx, &r, key, cost, l.limit.Load()) // Take is inlined, so that nobody copies the result
	return r, err
}

// TakeLimit is Take under another limit than the limiter's, such as that of the customer's
// plan. The bucket of a key is the same under every limit, and keeps its level. An invalid limit
// is an error, and nothing fits.
func (l *Limiter) TakeLimit(ctx context.Context, key string, cost float64, limit Limit) (r Result, err error) {
	if err = limit.Validate(); err == nil {
		err = l.take(ctx, &r, key, cost, &limit)
	}
	return r, err
}

func (l *Limiter) take(ctx context.Context, r *Result, key string, cost float64, limit *Limit) error {
	key = bounded(key)
	if l.zone != nil {
		level, at, fits := l.zone.Take(key, limit.Capacity, limit.Leak, cost)
		r.limit, r.cost, r.at = *limit, cost, Instant(at)
		r.explain(level, fits)
		return nil
	}
	c := Charge{Zone: l.o.Zone, Key: key, Limit: *limit, Cost: cost}
	d, err := l.ask(ctx, &c)
	*r = Result{Fits: d.Fits, Undecided: d.Undecided}
	if !d.Undecided && err == nil {
		*r = resultOf(&c, &d)
	}
	return err
}

// bounded returns the key under which a store keeps the bucket of a key.
func bounded(key string) string {
	if len(key) > longestKey {
		key = string(bucketkey.DigestOf(key).Append(nil))
	}
	return key
}

// resultOf returns the result of a charge by itself that a store has decided.
func resultOf(c *Charge, d *Decision) Result {
	r := Result{limit: c.Limit, cost: c.Cost, at: d.At, local: d.Local}
	r.explain(d.Level, d.Fits)
	return r
}

// explain sets what is told of a cost that found the bucket filled to level.
func (r *Result) explain(level float64, fits bool) {
	if r.Fits = fits; fits {
		level += r.cost
	} else if !r.limit.Oversize(r.cost) {
		r.RetryAfter = r.limit.TimeToFit(level, r.cost)
	}
	r.Level, r.Remaining = level, r.limit.Remaining(level)
}

// ask has the store decide a charge. With an error, the decision is what the options say.
func (l *Limiter) ask(ctx context.Context, c *Charge) (Decision, error) {
	inner, cancel := context.WithTimeout(ctx, l.o.Timeout)
	defer cancel()
	charges, decisions := []Charge{*c}, make([]Decision, 1)
	err, d := l.store.Take(inner, charges, decisions), &decisions[0]
	if err != nil || d.Undecided || d.Local {
		if left := ended(ctx); left != nil { // and the store may be well
			if err == nil && d.Poured {
				_ = l.settle(ctx, Settlement{Charge: charges[0], Was: *d, Cancel: true})
			}
			return Decision{Undecided: true}, left
		}
	}
	if err != nil {
		return Decision{Fits: !l.o.FailClosed, Undecided: true}, err
	}
	*c = charges[0] // a store that stands in for a shared one may have changed the limit
	return *d, nil
}

// ended returns why ctx has ended, or nil. It may know a deadline a moment before ctx does.
func ended(ctx context.Context) error {
	if deadline, has := ctx.Deadline(); has && !time.Now().Before(deadline) {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}

// Wait blocks until cost fits the bucket of key. It reserves its turn by pouring at once, and the
// bucket may overflow by what leaks until the deadline of ctx; without one, the queue has no
// bound. So callers are served in the order in which the store saw them, and nothing else fits
// before them: Take and Allow refuse meanwhile. With a capacity of 1 the flow is even.
//
// If ctx ends first, Wait returns its error and gives the cost back, unless others came after
// it: they wait for as long as they were told, and what is given back would let more in than
// the limit. So of several waiters that are cancelled, only the last in the queue gives its cost
// back.
//
// If ctx would end before the cost fits, Wait returns an error that wraps
// [context.DeadlineExceeded] at once. A cost that can never fit is an error too. If the store
// fails, Wait returns its error with LimiterOptions.FailClosed, and otherwise nil. While a shared
// store is down, a cost above this process's share of the capacity is refused sooner.
func (l *Limiter) Wait(ctx context.Context, key string, cost float64) error {
	limit := l.Limit()
	c, err := limit.reserve(ctx, cost)
	if err != nil {
		return err
	}
	c.Zone, c.Key = l.o.Zone, bounded(key)
	d, err := l.ask(ctx, &c)
	if err != nil && !d.Fits {
		return err
	}
	if d.Local { // by a share of the limit, which holds at least the cost
		c.Undelayed = max(0, limit.Capacity*(c.Limit.Leak/limit.Leak)-cost)
	}
	return c.await(ctx, &d, func(s Settlement) {
		_ = l.settle(ctx, s) // the bucket keeps the cost then, as if it had been used
	})
}

// settle settles although ctx may have ended.
func (l *Limiter) settle(ctx context.Context, s Settlement) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.o.Timeout)
	defer cancel()
	return l.store.Settle(ctx, []Settlement{s})
}

// reserve returns the charge of a caller who waits for cost to fit, for as long as ctx lasts.
// It may overflow the bucket by what leaks in that time. Take it, and call await.
//
// It is an error if ctx has ended, or if the cost can never fit.
func (l Limit) reserve(ctx context.Context, cost float64) (Charge, error) {
	if err := ctx.Err(); err != nil {
		return Charge{}, err
	}
	if l.Oversize(cost) {
		return Charge{}, fmt.Errorf("waiting for a cost of %v: it can never fit the capacity of %v", cost, l.Capacity)
	}
	longest := longestDrain
	if deadline, ok := ctx.Deadline(); ok {
		longest = min(longest, time.Until(deadline))
	}
	c := Charge{Limit: l, Cost: cost, Undelayed: l.Capacity - cost}
	c.Limit.Capacity = min(largest, l.Capacity+l.Leak*max(0, longest.Seconds()))
	c.Debt = l.Capacity - c.Limit.Capacity // so that a clock counts as set far back when it does for a take
	return c, nil
}

// await waits until a charge made by reserve has its turn, by the decision of a
// store. If ctx ends before, it calls settle with what cancels the charge, and returns the error
// of ctx. If the charge did not fit, its error wraps [context.DeadlineExceeded].
func (c *Charge) await(ctx context.Context, d *Decision, settle func(Settlement)) error {
	switch {
	case d.Undecided && d.Fits:
		return nil
	case d.Undecided:
		return errUndecided
	case !d.Poured:
		wait := Limit{Capacity: c.Undelayed + c.Cost, Leak: c.Limit.Leak}.TimeToFit(d.Level, c.Cost)
		return fmt.Errorf("waiting for a cost of %v: it would take %v: %w", c.Cost, wait, context.DeadlineExceeded)
	}
	delay := c.Delay(d)
	if delay == 0 {
		return nil
	}
	select {
	case <-time.After(delay):
		return nil
	case <-ctx.Done():
	}
	settle(Settlement{Charge: *c, Was: *d, Cancel: true})
	return ctx.Err()
}

// errUndecided is why nobody waits for a store that is down.
var errUndecided = errors.New("waiting: the store could not be asked, and refuses without")

// Settle corrects a Take once it is known what it really cost: actual, in units. What is more
// lifts the level by up to one capacity above the limit's. What is less is given back, except
// what has leaked meanwhile. Call it at most once for a result. A result without the store
// needs none, and Settle changes nothing. It works even if ctx has ended, such as that of a
// request whose client has left.
func (l *Limiter) Settle(ctx context.Context, key string, was Result, actual float64) error {
	if was.Undecided || was.limit == (Limit{}) {
		return nil
	}
	s := was.settlement(actual)
	s.Charge.Zone, s.Charge.Key = l.o.Zone, bounded(key)
	return l.settle(ctx, s)
}

// settlement returns what corrects the charge of a result.
func (r *Result) settlement(actual float64) Settlement {
	s := Settlement{
		Charge: Charge{Limit: r.limit, Cost: r.cost, Debt: r.limit.Capacity},
		Was:    Decision{Fits: r.Fits, Poured: r.Fits, At: r.at, Local: r.local},
		Diff:   actual,
	}
	if r.Fits {
		s.Diff -= r.cost
	}
	return s
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
	return store.Reset(ctx, l.o.Zone, bounded(key), false)
}
