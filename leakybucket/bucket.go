package leakybucket

import (
	"container/list"
	"context"
	"fmt"
	"sync"
	"time"
)

// A Bucket is a single bucket in memory, for programs that need no store. It is
// safe for concurrent use and lives by the process's monotonic clock. Its debt
// is one capacity.
type Bucket struct {
	limit Limit
	base  time.Time

	mu    sync.Mutex
	state State // without the costs that wait

	// Callers of Wait in their order, and the sum of their costs. The timer is
	// for the first of them, if there is one.
	queue  list.List // of *waiter
	queued float64
	timer  *time.Timer
}

// A waiter is a call of Wait whose cost is not poured yet.
type waiter struct {
	cost   float64
	poured chan struct{} // closed when it is
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

// Take pours cost if it fits, as [Limit.Take] does. While callers of
// [Bucket.Wait] wait, nothing fits: they were first.
func (b *Bucket) Take(cost float64) Decision {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	if b.serve(now); b.queue.Len() > 0 {
		return Decision{Level: b.level(now), At: now}
	}
	var d Decision
	b.state, d = b.limit.Take(b.state, cost, now)
	return d
}

// Fill pours cost without asking, as [Limit.Fill] does. Costs that wait count as
// poured, so with callers waiting only a negative cost changes anything.
func (b *Bucket) Fill(cost float64) FillResult {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	b.serve(now)
	if b.queue.Len() > 0 && cost > 0 {
		return FillResult{Level: b.level(now), Full: true}
	}
	var f FillResult
	b.state, f = b.limit.Fill(b.state, cost, now)
	b.serve(now)
	if b.queue.Len() > 0 {
		f = FillResult{Level: b.level(now), Full: b.level(now) >= b.limit.Capacity}
	}
	return f
}

// Fits reports whether cost would fit now, and changes nothing. Another
// goroutine may pour first: to pour if it fits, call Take.
func (b *Bucket) Fits(cost float64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	b.serve(now)
	return b.queue.Len() == 0 && b.limit.fits(b.level(now), cost)
}

// Level returns how full the bucket is now, in units of cost. Costs that wait
// count as poured, so the level may be above the capacity.
func (b *Bucket) Level() float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.level(b.now())
}

// Settle corrects the charge of a Take by diff once its true cost is known: by
// more, or by less if diff is negative. See [Limit.Settle]. Call it at most once
// for a decision.
func (b *Bucket) Settle(was Decision, cost, diff float64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	b.serve(now)
	s := Settlement{Charge: Charge{Limit: b.limit, Cost: cost, Debt: b.limit.Capacity}, Was: was, Diff: diff}
	b.state = s.Apply(b.state, now)
	b.serve(now)
}

// Wait blocks until cost fits and pours it. Callers are served in the order in
// which they came, and no Take gets in before them.
//
// If ctx ends first, Wait returns its error and pours nothing. A caller that
// leaves gives back the time that nobody else needs: those before it are served
// as they would have been, those behind it move up, and the bucket is left as if
// it had never come.
//
// If ctx would end before the cost fits, Wait returns an error that wraps
// [context.DeadlineExceeded] at once. A cost that can never fit is an error too.
func (b *Bucket) Wait(ctx context.Context, cost float64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	place, err := b.enqueue(ctx, cost)
	if err != nil {
		return err
	}
	select {
	case <-place.Value.(*waiter).poured:
		return nil
	case <-ctx.Done():
		return b.leave(ctx, place)
	}
}

// enqueue gives the caller the last place in the queue.
func (b *Bucket) enqueue(ctx context.Context, cost float64) (*list.Element, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.limit.Oversize(cost) {
		return nil, fmt.Errorf("waiting for a cost of %v: it can never fit the capacity of %v", cost, b.limit.Capacity)
	}
	now := b.now()
	b.serve(now)
	wait := b.limit.TimeToFit(b.level(now), cost)
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < wait {
		return nil, fmt.Errorf("waiting for a cost of %v: it would take %v: %w", cost, wait, context.DeadlineExceeded)
	}
	place := b.queue.PushBack(&waiter{cost, make(chan struct{})})
	b.queued += cost
	if b.queue.Len() == 1 {
		b.serve(now)
	}
	return place, nil
}

// leave takes the caller out of the queue, unless its cost has just been poured.
func (b *Bucket) leave(ctx context.Context, place *list.Element) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	b.serve(now) // the turn may have come in this very instant
	select {
	case <-place.Value.(*waiter).poured:
		return nil
	default:
	}
	b.remove(place)
	b.serve(now) // those behind move up
	return ctx.Err()
}

// serve pours the costs of all at the head of the queue that fit by now, and
// sets the timer for the next one.
func (b *Bucket) serve(now Instant) {
	for first := b.queue.Front(); first != nil; first = b.queue.Front() {
		w := first.Value.(*waiter)
		var d Decision
		if b.state, d = b.limit.Take(b.state, w.cost, now); !d.Fits {
			b.wake(b.limit.TimeToFit(d.Level, w.cost))
			return
		}
		b.remove(first)
		close(w.poured)
	}
}

func (b *Bucket) remove(place *list.Element) {
	b.queued -= b.queue.Remove(place).(*waiter).cost
	if b.queue.Len() == 0 {
		b.queued = 0 // without the rounding of the sum
		if b.timer != nil {
			b.timer.Stop()
		}
	}
}

// wake serves the queue after a while.
func (b *Bucket) wake(after time.Duration) {
	if b.timer != nil {
		b.timer.Reset(after)
		return
	}
	b.timer = time.AfterFunc(after, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.serve(b.now())
	})
}

func (b *Bucket) level(now Instant) float64 { return b.limit.Level(b.state, now) + b.queued }

// now must be called with the lock held: a clock read outside of it could be
// older than the state it is applied to.
func (b *Bucket) now() Instant { return Instant(time.Since(b.base).Microseconds()) }
