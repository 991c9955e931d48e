package admission

import (
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/clock"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// A queue holds the waiting requests of one key in the order in which they go
// on. The whole policy is in waiter.before and queue.next: nothing else decides
// about the order. The zone's lock guards a queue.
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
	in         *queue // nil before and after
	prev, next *waiter

	// In the delay queue:
	dueAt leakybucket.Instant
	due   bool // the delay is over

	// In the queue for a slot: how many there are. Zero in the delay queue.
	slots int
	again bool // it gave its slot back for another one

	turn  *Turn  // in the rows of those who take turns
	early string // by which it waits for the time to take its turn
}

// before reports whether w goes before o, which arrived earlier.
func (w *waiter) before(o *waiter) bool {
	if w.again != o.again {
		return w.again
	}
	return w.dueAt < o.dueAt
}

// next returns the request that goes on now, or nil if there is none. taken is
// how many slots of the key are in use.
func (q *queue) next(z *Zone, taken int) *waiter {
	w := q.first
	switch {
	case w == nil || q.moving:
		return nil
	case w.slots > 0 && taken >= z.slots(w.slots):
		return nil
	case w.slots == 0 && !w.due:
		return nil
	}
	return w
}

// empty reports whether nobody waits or is just about to go on.
func (q *queue) empty() bool { return q.first == nil && !q.moving }

// add puts w in its place. Requests arrive nearly in order, so the search begins
// at the end.
func (q *queue) add(w *waiter) {
	after := q.last
	for after != nil && w.before(after) {
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
