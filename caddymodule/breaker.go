package caddymodule

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// A breaker sees to it that a store that fails is left alone. It opens after a
// few failures in a row, and closes when a probe of its own succeeds: no request
// has to try, and none is slow for it.
type breaker struct {
	probe   func(context.Context) error
	changed func(down bool, err error, after time.Duration)

	open     atomic.Bool
	failures atomic.Int32 // in a row

	telling sync.Mutex // while changed is called: one change after the other

	mu     sync.Mutex
	opened time.Time
	closed time.Time     // when it was last
	hold   time.Duration // until the first probe; 0 if that is to be soon
	end    context.CancelFunc
	ended  bool
}

const (
	// A single slow answer is no outage.
	failuresToOpen = 3

	// probeEvery is short, so that limits hold again soon, and at most one
	// probe is under way.
	probeEvery   = 100 * time.Millisecond
	probeTimeout = 500 * time.Millisecond

	// A store that fails again within calm, though no probe has failed, is left
	// alone for twice as long as the last time, up to mostHold.
	calm     = 10 * time.Second
	mostHold = time.Second
)

func (b *breaker) isOpen() bool { return b.open.Load() }

func (b *breaker) succeeded() {
	if b.failures.Load() != 0 {
		b.failures.Store(0)
	}
}

func (b *breaker) failed(err error) {
	if b.failures.Add(1) < failuresToOpen || b.open.Load() {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended || b.open.Load() {
		return
	}
	b.open.Store(true)
	b.opened = time.Now()
	b.hold = min(2*b.hold, mostHold)
	if b.hold == 0 || b.opened.Sub(b.closed) > calm {
		b.hold = probeEvery
	}
	var ctx context.Context
	ctx, b.end = context.WithCancel(context.Background())
	go b.revive(ctx, b.hold, err)
}

// revive says what has happened, for which no request must wait, and probes until
// the store answers.
func (b *breaker) revive(ctx context.Context, wait time.Duration, why error) {
	b.telling.Lock()
	b.changed(true, why, 0)
	b.telling.Unlock()
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
			break
		}
		b.mu.Lock()
		b.hold = 0 // probes tell how it is
		b.mu.Unlock()
		timer.Reset(probeEvery)
	}
	b.telling.Lock()
	defer b.telling.Unlock()
	if after, up := b.shut(); up {
		b.changed(false, nil, after)
	}
}

// shut lets requests ask again, and returns how long they have not.
func (b *breaker) shut() (after time.Duration, up bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		return 0, false
	}
	b.end()
	b.failures.Store(0)
	b.open.Store(false)
	b.closed = time.Now()
	return b.closed.Sub(b.opened), true
}

// close ends the probing.
func (b *breaker) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
	if b.end != nil {
		b.end()
	}
}
