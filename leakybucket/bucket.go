package leakybucket

import (
	"context"
	"sync"
	"time"
)

// A Bucket is a single bucket in memory, for programs that need no store. It is
// safe for concurrent use, and uses the process's monotonic clock. Its debt is
// one capacity.
type Bucket struct {
	limit Limit
	base  time.Time

	mu    sync.Mutex
	state State
}

// NewBucket returns an empty bucket, or says what is wrong with the limit.
func NewBucket(limit Limit) (*Bucket, error) {
	if err := limit.Validate(); err != nil {
		return nil, err
	}
	return &Bucket{limit: limit, base: time.Now()}, nil
}

// Take pours cost if it fits, as [Limit.Take] does.
func (b *Bucket) Take(cost float64) Result {
	c, d := Charge{Limit: b.limit, Cost: cost}, Decision{}
	b.mu.Lock()
	c.Take(&b.state, b.now(), &d)
	b.mu.Unlock()
	return resultOf(&c, &d)
}

// Fill pours cost without asking, up to the capacity. It returns how full the bucket is now,
// and whether the pour reached the capacity. See [Limit.Fill].
func (b *Bucket) Fill(cost float64) (level float64, full bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.state, level, full = b.limit.Fill(b.state, cost, b.now())
	return level, full
}

// Fits reports whether cost would fit now, and changes nothing. Another
// goroutine may pour first: to pour if it fits, call Take.
func (b *Bucket) Fits(cost float64) bool { return b.limit.Fits(b.Level(), cost) }

// Level returns how full the bucket is now, in units of cost. Costs that wait
// count as poured, so the level may be above the capacity.
func (b *Bucket) Level() float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.limit.Level(b.state, b.now())
}

// Settle corrects a Take once it is known what it really cost: actual, in units. See
// [Limiter.Settle].
func (b *Bucket) Settle(was Result, actual float64) {
	b.settle(was.settlement(actual))
}

func (b *Bucket) settle(s Settlement) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.state = s.Apply(b.state, b.now())
}

// Wait blocks until cost fits, as [Limiter.Wait] does. Callers are served in the order in
// which they came, and no Take gets in before them.
func (b *Bucket) Wait(ctx context.Context, cost float64) error {
	c, err := b.limit.reserve(ctx, cost)
	if err != nil {
		return err
	}
	var d Decision
	b.mu.Lock()
	c.Take(&b.state, b.now(), &d)
	b.mu.Unlock()
	return c.await(ctx, &d, b.settle)
}

// now must be called with the lock held: a clock read outside of it could be
// older than the state it is applied to.
func (b *Bucket) now() Instant { return Instant(time.Since(b.base).Microseconds()) }
