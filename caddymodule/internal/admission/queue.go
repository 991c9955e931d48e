package admission

import (
	"slices"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/clock"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// A queue holds the delayed requests of one key in the order in which they go on. The
// whole policy is in queue.next and queue.add. The zone's lock guards a queue.
type queue struct {
	waiters []*waiter

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
	in    *queue // of the delayed; nil before and after
	dueAt leakybucket.Instant
	due   bool   // the delay is over
	claim *claim // to a slot for which it waits
}

// next returns the request that goes on now, or nil if there is none.
func (q *queue) next() *waiter {
	if len(q.waiters) == 0 || q.moving || !q.waiters[0].due {
		return nil
	}
	return q.waiters[0]
}

// empty reports whether nobody waits or is just about to go on.
func (q *queue) empty() bool { return len(q.waiters) == 0 && !q.moving }

// add puts w in its place. Requests arrive nearly in order, so the search begins
// at the end.
func (q *queue) add(w *waiter) {
	i := len(q.waiters)
	for i > 0 && w.dueAt < q.waiters[i-1].dueAt {
		i--
	}
	q.waiters = slices.Insert(q.waiters, i, w)
	w.in = q
}

// remove takes w out of the queue.
func (q *queue) remove(w *waiter) {
	i := slices.Index(q.waiters, w)
	q.waiters = slices.Delete(q.waiters, i, i+1)
	w.in = nil
}
