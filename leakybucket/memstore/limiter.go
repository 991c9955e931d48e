package memstore

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// A Limiter is one limit for many keys: a bucket for each, in memory. It is safe
// for concurrent use and starts no goroutines.
type Limiter struct {
	limit leakybucket.Limit
	store *Store

	waiting atomic.Int64 // callers of Wait, so that Take need not look for one
	mu      sync.Mutex
	lines   map[string]*line // by key, while there are callers of Wait
}

// A line is the callers of Wait for one key.
type line struct {
	turn    chan struct{} // held by the first; channels serve in order
	callers int
	cost    float64 // of all of them
}

// A Result says what became of a [Limiter.Take].
type Result struct {
	Fits      bool    // the cost was poured
	Remaining float64 // how much still fits after it, in units of cost

	// RetryAfter is how long it takes until the cost fits if nobody else pours.
	// Zero if it was poured, or if it can never fit.
	RetryAfter time.Duration
}

// NewLimiter returns a limiter, or says what is wrong with the limit.
func NewLimiter(limit leakybucket.Limit, o Options) (*Limiter, error) {
	if err := limit.Validate(); err != nil {
		return nil, err
	}
	return &Limiter{limit: limit, store: New(o), lines: make(map[string]*line)}, nil
}

// Take pours cost into the bucket of key if it fits. While callers of
// [Limiter.Wait] wait for the key, nothing fits: they were first. A key longer
// than 32 KiB never fits.
func (l *Limiter) Take(key string, cost float64) Result {
	ahead := l.ahead(key)
	d := l.take(&leakybucket.Charge{Key: key, Limit: l.limit, Cost: cost, Probe: ahead > 0})
	level := d.Level + ahead
	if d.Poured {
		return Result{Fits: true, Remaining: l.limit.Remaining(level + cost)}
	}
	refused := Result{Remaining: l.limit.Remaining(level)}
	if !l.limit.Oversize(cost) {
		refused.RetryAfter = l.limit.TimeToFit(level, cost)
	}
	return refused
}

func (l *Limiter) take(c *leakybucket.Charge) leakybucket.Decision {
	var d [1]leakybucket.Decision
	charges := [1]leakybucket.Charge{*c}
	_ = l.store.Take(context.Background(), charges[:], d[:]) // too long a key is a decision that does not fit
	return d[0]
}

// Level returns how full the bucket of key is now, in units of cost. Costs that
// wait count as poured, so the level may be above the capacity.
func (l *Limiter) Level(key string) float64 {
	ahead := l.ahead(key)
	return l.take(&leakybucket.Charge{Key: key, Limit: l.limit, Probe: true}).Level + ahead
}

// Reset empties the bucket of key.
func (l *Limiter) Reset(key string) { _ = l.store.Reset(context.Background(), "", key, false) }

// Store returns the store behind the limiter, with zone "" and the keys as given:
// for counts, for a changed bound, and for [Store.Shed].
func (l *Limiter) Store() *Store { return l.store }

// Wait blocks until cost fits the bucket of key and pours it. Callers for one key
// are served in the order in which they came. If ctx ends first, Wait returns its
// error and pours nothing.
//
// If ctx would end before the cost fits, Wait returns an error that wraps
// [context.DeadlineExceeded] at once. A cost that can never fit is an error too.
func (l *Limiter) Wait(ctx context.Context, key string, cost float64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if l.limit.Oversize(cost) || len(key) > longestName {
		return fmt.Errorf("waiting for a cost of %v for key %.40q: it can never fit the capacity of %v", cost, key, l.limit.Capacity)
	}
	if err := l.inTime(ctx, l.Level(key), cost); err != nil {
		return err
	}
	line := l.join(key, cost)
	defer l.leave(key, cost, line)
	select {
	case line.turn <- struct{}{}:
		defer func() { <-line.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	for {
		d := l.take(&leakybucket.Charge{Key: key, Limit: l.limit, Cost: cost})
		if d.Poured {
			return nil
		}
		if err := l.inTime(ctx, d.Level, cost); err != nil {
			return err
		}
		timer := time.NewTimer(l.limit.TimeToFit(d.Level, cost))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}

// inTime returns an error if ctx ends before cost fits above level.
func (l *Limiter) inTime(ctx context.Context, level, cost float64) error {
	wait := l.limit.TimeToFit(level, cost)
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < wait {
		return fmt.Errorf("waiting for a cost of %v: it would take %v: %w", cost, wait, context.DeadlineExceeded)
	}
	return nil
}

// ahead returns the cost of all who wait for a key.
func (l *Limiter) ahead(key string) float64 {
	if l.waiting.Load() == 0 {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if line := l.lines[key]; line != nil {
		return line.cost
	}
	return 0
}

func (l *Limiter) join(key string, cost float64) *line {
	l.waiting.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.lines[key]
	if at == nil {
		at = &line{turn: make(chan struct{}, 1)}
		l.lines[key] = at
	}
	at.callers++
	at.cost += cost
	return at
}

func (l *Limiter) leave(key string, cost float64, at *line) {
	defer l.waiting.Add(-1)
	l.mu.Lock()
	defer l.mu.Unlock()
	at.cost -= cost
	if at.callers--; at.callers == 0 {
		delete(l.lines, key)
	}
}
