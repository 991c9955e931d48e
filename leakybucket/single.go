package leakybucket

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// A Bucket is one bucket for those who need no store: in memory, on the
// process's monotonic clock, safe for concurrent use. Its debt is one capacity.
type Bucket struct {
	limit Limit
	base  time.Time

	mu    sync.Mutex
	state State
	pours uint64 // how often something was poured
}

// NewBucket returns an empty bucket, or says what is wrong with the limit.
func NewBucket(limit Limit) (*Bucket, error) {
	if err := limit.Validate(); err != nil {
		return nil, err
	}
	return &Bucket{limit: limit, base: time.Now()}, nil
}

// Limit returns the limit the bucket was made with.
func (b *Bucket) Limit() Limit { return b.limit }

// Take pours cost if it fits, as [Limit.Take] does.
func (b *Bucket) Take(cost float64) Decision {
	b.mu.Lock()
	defer b.mu.Unlock()
	var d Decision
	if b.state, d = b.limit.Take(b.state, cost, b.now()); d.Poured {
		b.pours++
	}
	return d
}

// Fill pours cost without asking, as [Limit.Fill] does.
func (b *Bucket) Fill(cost float64) Filling {
	b.mu.Lock()
	defer b.mu.Unlock()
	var f Filling
	b.state, f = b.limit.Fill(b.state, cost, b.now())
	b.pours++
	return f
}

// Fits reports whether cost would fit now, and changes nothing. Somebody else
// may pour before the caller does: to pour if it fits, call Take.
func (b *Bucket) Fits(cost float64) bool { return b.limit.fits(b.Level(), cost) }

// Level returns how full the bucket is now, in units of cost. What [Bucket.Wait]
// has promised is in it, so it may be above the capacity.
func (b *Bucket) Level() float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.limit.Level(b.state, b.now())
}

// Settle corrects what a Take poured, once it is known what it should have been:
// diff more, or less if it is negative. See [Limit.Settle]. Call it once for a
// decision.
func (b *Bucket) Settle(was Decision, cost, diff float64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := Settlement{Charge: Charge{Limit: b.limit, Cost: cost, Debt: b.limit.Capacity}, Was: was, Diff: diff}
	b.state = s.Apply(b.state, b.now())
	if diff > 0 {
		b.pours++
	}
}

// Wait pours cost as soon as it fits, and blocks until then. Who comes first is
// served first: the cost is promised at once, and what comes later, by Take too,
// must find room beside it.
//
// If ctx ends before, nothing is left poured if nobody came after; otherwise
// the place in the row stays empty, since those behind already know when their
// turn is. If ctx would end before the turn comes, Wait returns an error that
// wraps [context.DeadlineExceeded] at once. A cost that can never fit is an
// error too.
func (b *Bucket) Wait(ctx context.Context, cost float64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	wait, place, err := b.promise(ctx, cost)
	if err != nil || wait <= 0 {
		return err
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		b.leave(cost, place)
		return ctx.Err()
	}
}

// promise pours cost, above the capacity if need be, and returns how long to
// wait until it fits and the place in the row.
func (b *Bucket) promise(ctx context.Context, cost float64) (wait time.Duration, place uint64, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.limit.Oversize(cost) {
		return 0, 0, fmt.Errorf("waiting for a cost of %v: it can never fit a capacity of %v", cost, b.limit.Capacity)
	}
	now := b.now()
	level := b.limit.Level(b.state, now)
	wait = b.limit.TimeToFit(level, cost)
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < wait {
		return 0, 0, fmt.Errorf("waiting for a cost of %v: it fits in %v: %w", cost, wait, context.DeadlineExceeded)
	}
	b.limit.write(&b.state, level+cost, now)
	b.pours++
	return wait, b.pours, nil
}

// leave gives back what was promised, if nobody has come since.
func (b *Bucket) leave(cost float64, place uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.pours != place {
		return
	}
	now := b.now()
	b.limit.write(&b.state, max(0, b.limit.Level(b.state, now)-cost), now)
}

// now must be called with the lock held: a clock read outside of it could be
// older than the state it is applied to.
func (b *Bucket) now() Instant { return Instant(time.Since(b.base).Microseconds()) }
