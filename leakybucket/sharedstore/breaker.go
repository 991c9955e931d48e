package sharedstore

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// breakers keep calls away from the shards of a store that fail. A store without
// shards is one shard, number 0.
type breakers struct {
	changed func(down bool, err error, after time.Duration) // must not block: it is called with the lock held

	open atomic.Int32 // how many are; changed with the lock held

	mu     sync.Mutex
	of     map[int]*breaker // by shard
	opened time.Time        // when the first one did, of those that are open
}

// A breaker opens when at least half of the last calls of its shard failed. Then it lets
// one call at a time through, a trial, and closes when enough of them succeeded in a row.
type breaker struct {
	open     bool
	switched uint64 // how often it opened or closed: calls from before the last time say nothing of now
	closed   time.Time

	// While it is closed: the last calls, the oldest at next.
	last [windowCalls]counted
	next int

	// While it is open: whether a trial is under way, how many in a row succeeded, when
	// the next one is due, and how long it was waited for.
	trying bool
	proved int
	due    time.Time
	hold   time.Duration
}

const (
	// A single slow answer is no outage. The window is bounded in calls as well:
	// thousands that succeeded a moment ago would hide an outage for seconds.
	failuresToOpen = 3
	window         = 10 * time.Second
	windowCalls    = 20

	successesToClose = 3

	// The first trial is soon, so that limits hold again soon. The hold doubles with
	// each trial that fails, and if the breaker opens within a window of its closing.
	firstHold   = 100 * time.Millisecond
	longestHold = time.Second
)

// counted is the outcome of a call.
type counted struct {
	at     time.Time
	failed bool
}

// A permit is the leave to call a shard, whose outcome is to be reported. That of a
// trial must be.
type permit struct {
	shard    int
	breaker  *breaker
	switched uint64
	trial    bool
	beside   *permit // of the same call, to another shard
}

// isOpen reports whether any breaker is open.
func (b *breakers) isOpen() bool { return b.open.Load() > 0 }

// isOpenFor reports whether the breaker of a shard is open.
func (b *breakers) isOpenFor(shard int) bool {
	if !b.isOpen() {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	of := b.of[shard]
	return of != nil && of.open
}

// admit reports whether a call of these shards, of which there is at least one, may be
// made now.
func (b *breakers) admit(now time.Time, shards ...int) (first permit, admitted bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, shard := range shards {
		if of := b.of[shard]; of != nil && of.open && (of.trying || now.Before(of.due)) {
			return permit{}, false
		}
	}
	first = b.permit(shards[0])
	for _, shard := range shards[1:] {
		next := b.permit(shard)
		next.beside, first.beside = first.beside, &next
	}
	return first, true
}

func (b *breakers) permit(shard int) permit {
	of := b.of[shard]
	if of == nil {
		if b.of == nil {
			b.of = make(map[int]*breaker)
		}
		of = new(breaker)
		b.of[shard] = of
	}
	of.trying = of.open
	return permit{shard: shard, breaker: of, switched: of.switched, trial: of.open}
}

// neglected returns the shards whose trial is due for so long that no request will
// make it.
func (b *breakers) neglected(now time.Time) (shards []int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for shard, of := range b.of {
		if of.open && !of.trying && now.Sub(of.due) >= firstHold {
			shards = append(shards, shard)
		}
	}
	return shards
}

// isFailing reports whether a breaker is open, or a call failed within the window.
func (b *breakers) isFailing(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, of := range b.of {
		if failures, _ := of.lately(now); of.open || failures > 0 {
			return true
		}
	}
	return false
}

// count returns how many shards were called, and how many of their breakers are open.
func (b *breakers) count() (shards, open int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.of), int(b.open.Load())
}

// report counts a call of a shard that succeeded, or failed with err.
func (b *breakers) report(p *permit, err error, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	of := p.breaker
	switch {
	case b.of[p.shard] != of || p.switched != of.switched:
	case p.trial && of.tried(err, now):
		b.shut(now)
	case !p.trial && of.called(err, now):
		if b.open.Add(1) == 1 {
			b.opened = now
			b.changed(true, err, 0)
		}
	}
}

// forget forgets a shard that is no more.
func (b *breakers) forget(shard int, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if of := b.of[shard]; of != nil {
		delete(b.of, shard)
		if of.open {
			b.shut(now)
		}
	}
}

// shut counts a breaker that has closed.
func (b *breakers) shut(now time.Time) {
	if b.open.Add(-1) == 0 {
		b.changed(false, nil, now.Sub(b.opened))
	}
}

// called counts a call of a closed breaker, and reports whether that opened it.
func (b *breaker) called(err error, now time.Time) (opened bool) {
	b.last[b.next] = counted{now, err != nil}
	b.next = (b.next + 1) % windowCalls
	if err == nil {
		return false
	}
	if failures, calls := b.lately(now); failures < failuresToOpen || 2*failures < calls {
		return false
	}
	b.hold = min(2*b.hold, longestHold)
	if b.hold == 0 || now.Sub(b.closed) > window {
		b.hold = firstHold
	}
	b.open, b.due, b.proved = true, now.Add(spread(b.hold)), 0
	b.switched++
	return true
}

// lately returns how many of the calls in the window failed.
func (b *breaker) lately(now time.Time) (failures, calls int) {
	for _, call := range b.last {
		if now.Sub(call.at) > window {
			continue
		}
		calls++
		if call.failed {
			failures++
		}
	}
	return failures, calls
}

// tried counts a trial, and reports whether that closed the breaker. After one that
// succeeded the next one is due at once.
func (b *breaker) tried(err error, now time.Time) (closed bool) {
	b.trying, b.due = false, now
	if err != nil {
		b.proved, b.hold = 0, min(2*b.hold, longestHold)
		b.due = now.Add(spread(b.hold))
		return false
	}
	if b.proved++; b.proved < successesToClose {
		return false
	}
	b.open, b.closed = false, now
	b.last = [windowCalls]counted{}
	b.switched++
	return true
}

// spread returns about as much as hold, so that the trials of many nodes spread.
func spread(hold time.Duration) time.Duration {
	return hold - hold/8 + rand.N(hold/4)
}
