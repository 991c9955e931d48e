package admission

import (
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/clock"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// A queue holds the delayed requests of one key in the order in which they go on. The
// whole policy is in queue.next and queue.add. The zone's lock guards a queue.
type queue struct {
	first, last *waiter

	// moving is set while a request that has left the queue takes its next step,
	// be it to wake up. Until then nobody follows, so that nobody overtakes it.
	moving bool
}

// A waiter is the place of a request in a queue.
type waiter struct {
	request *request
	step    int // of the request
	zone    *Zone
	key     string
	began   time.Time
	timer   clock.Timer // stopped when the wait is over

	// The zone's lock guards these.
	in         *queue // of the delayed; nil before and after
	prev, next *waiter
	dueAt      leakybucket.Instant
	due        bool // the delay is over

	claim *claim // for a slot
	early string // by which it waits for the time to take its turn
}

// next returns the request that goes on now, or nil if there is none.
func (q *queue) next() *waiter {
	if q.first == nil || q.moving || !q.first.due {
		return nil
	}
	return q.first
}

// empty reports whether nobody waits or is just about to go on.
func (q *queue) empty() bool { return q.first == nil && !q.moving }

// add puts w in its place. Requests arrive nearly in order, so the search begins
// at the end.
func (q *queue) add(w *waiter) {
	after := q.last
	for after != nil && w.dueAt < after.dueAt {
		after = after.prev
	}
	w.in, w.prev = q, after
	if after == nil {
		w.next, q.first = q.first, w
	} else {
		w.next, after.next = after.next, w
	}
	if w.next == nil {
		q.last = w
	} else {
		w.next.prev = w
	}
}

// remove takes w out of the queue.
func (q *queue) remove(w *waiter) {
	if w.prev == nil {
		q.first = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		q.last = w.prev
	} else {
		w.next.prev = w.prev
	}
	w.in, w.prev, w.next = nil, nil, nil
}
