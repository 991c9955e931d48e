package sharedstore

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// A breaker keeps calls away from a store that fails. It opens when at least half of
// the last calls failed. Then it lets one call at a time through, a trial, and closes
// when enough of them succeeded in a row.
type breaker struct {
	changed func(down bool, err error, after time.Duration) // must not block: it is called with the lock held

	open atomic.Bool // changed with the lock held

	mu       sync.Mutex
	switched uint64 // how often it opened or closed: calls from before the last time say nothing of now
	opened   time.Time
	closed   time.Time

	// While it is closed: the last calls, the oldest at next, and when one failed last.
	last     [windowCalls]counted
	next     int
	failedAt time.Time

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

// A permit is the leave to make a call, whose outcome is to be reported. That of a
// trial must be.
type permit struct {
	switched uint64
	trial    bool
}

func (b *breaker) isOpen() bool { return b.open.Load() }

// admit reports whether a call may be made now.
func (b *breaker) admit(now time.Time) (permit, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open.Load() {
		if b.trying || now.Before(b.due) {
			return permit{}, false
		}
		b.trying = true
	}
	return permit{b.switched, b.trying}, true
}

// isNeglected reports whether a trial is due for so long that no request will make it.
func (b *breaker) isNeglected(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.open.Load() && !b.trying && now.Sub(b.due) >= firstHold
}

// isFailing reports whether the breaker is open, or a call failed within the window.
func (b *breaker) isFailing(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.open.Load() || now.Sub(b.failedAt) <= window
}

// report counts a call that succeeded, or failed with err.
func (b *breaker) report(p permit, err error, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case p.switched != b.switched:
		return
	case p.trial:
		b.tried(err, now)
		return
	}
	b.last[b.next] = counted{now, err != nil}
	b.next = (b.next + 1) % windowCalls
	if err == nil {
		return
	}
	b.failedAt = now
	if !b.hasFailed(now) {
		return
	}
	b.hold = min(2*b.hold, longestHold)
	if b.hold == 0 || now.Sub(b.closed) > window {
		b.hold = firstHold
	}
	b.opened, b.due, b.proved = now, now.Add(spread(b.hold)), 0
	b.flip(true, err)
}

// hasFailed reports whether enough of the calls in the window failed.
func (b *breaker) hasFailed(now time.Time) bool {
	calls, failures := 0, 0
	for _, call := range b.last {
		if now.Sub(call.at) > window {
			continue
		}
		calls++
		if call.failed {
			failures++
		}
	}
	return failures >= failuresToOpen && 2*failures >= calls
}

// tried counts a trial. After one that succeeded the next one is due at once.
func (b *breaker) tried(err error, now time.Time) {
	b.trying, b.due = false, now
	if err != nil {
		b.proved, b.hold = 0, min(2*b.hold, longestHold)
		b.due = now.Add(spread(b.hold))
		return
	}
	if b.proved++; b.proved == successesToClose {
		b.closed, b.last, b.failedAt = now, [windowCalls]counted{}, time.Time{}
		b.flip(false, nil)
	}
}

func (b *breaker) flip(open bool, err error) {
	b.switched++
	b.open.Store(open)
	b.changed(open, err, b.closed.Sub(b.opened))
}

// spread returns about as much as hold, so that the trials of many nodes spread.
func spread(hold time.Duration) time.Duration {
	return hold - hold/8 + rand.N(hold/4)
}
