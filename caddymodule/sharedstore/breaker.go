package sharedstore

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// A breaker keeps calls away from a store that fails. It opens after a few
// failures in a row and closes when a probe of its own succeeds, so no request
// has to try the store and none is slow because of it.
type breaker struct {
	probe   func(context.Context) error
	changed func(down bool, err error, after time.Duration) // must not block: it is called with the lock held

	open     atomic.Bool
	failures atomic.Int32  // in a row
	closings atomic.Uint64 // how often it closed: calls from before the last one say nothing of now

	mu     sync.Mutex
	opened time.Time
	closed time.Time     // when it last closed
	hold   time.Duration // until the first probe of the last opening; 0 if a probe failed since
	end    context.CancelFunc
	ended  bool
}

const (
	// A single slow answer is no outage.
	failuresToOpen = 3

	// probeEvery is short, so that limits hold again soon. At most one probe is
	// under way at a time.
	probeEvery   = 100 * time.Millisecond
	probeTimeout = 500 * time.Millisecond

	// A store that answers probes and yet fails calls within calm is left alone
	// for twice as long as the last time, up to longestHold.
	calm        = 10 * time.Second
	longestHold = time.Second
)

func (b *breaker) isOpen() bool { return b.open.Load() }

// generation returns the number that a call passes to failed if it fails.
func (b *breaker) generation() uint64 { return b.closings.Load() }

func (b *breaker) succeeded() {
	if b.failures.Load() != 0 {
		b.failures.Store(0)
	}
}

// failed counts a call that began in a generation and failed. A call from before
// the breaker last closed counts for nothing.
func (b *breaker) failed(generation uint64, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended || b.open.Load() || generation != b.closings.Load() || b.failures.Add(1) < failuresToOpen {
		return
	}
	b.open.Store(true)
	b.opened = time.Now()
	b.hold = min(2*b.hold, longestHold)
	if b.hold == 0 || b.opened.Sub(b.closed) > calm {
		b.hold = probeEvery
	}
	b.changed(true, err, 0)
	var ctx context.Context
	ctx, b.end = context.WithCancel(context.Background())
	go b.revive(ctx, b.hold)
}

// revive probes until the store answers or the breaker is ended.
func (b *breaker) revive(ctx context.Context, wait time.Duration) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		probing, done := context.WithTimeout(ctx, probeTimeout)
		err := b.probe(probing)
		done()
		if err == nil {
			b.close()
			return
		}
		b.mu.Lock()
		b.hold = 0 // probes tell how the store is
		b.mu.Unlock()
		timer.Reset(probeEvery)
	}
}

// close allows calls again.
func (b *breaker) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		return
	}
	b.end()
	b.closed = time.Now()
	b.closings.Add(1)
	b.failures.Store(0)
	b.open.Store(false)
	b.changed(false, nil, b.closed.Sub(b.opened))
}

// stop ends the probing for good. An open breaker stays open.
func (b *breaker) stop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
	if b.end != nil {
		b.end()
	}
}
