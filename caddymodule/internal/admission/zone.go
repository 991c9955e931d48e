package admission

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/clock"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/fairqueue"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// A Zone holds the queues and slots of a zone. It outlives configs. Enforced and
// shadow requests of a zone have a Zone each. The zero value is ready for use. It
// is safe for concurrent use.
type Zone struct {
	// Name orders the zones in which a request takes slots. It must not change.
	Name string

	// Clock is the time that the zone goes by. If nil, it is the process's. It must not
	// change, and all zones of a request must have the same.
	Clock clock.Clock

	// Released, if not nil, is told each slot that was held by a turn. It is called
	// from any goroutine and must not change.
	Released func(t *Turn, held time.Duration)

	mu      sync.Mutex
	waiting int // of all keys, as are those served
	served  int
	keys    map[string]*keyState
	early   map[string]int // requests that came too early for their turns, by key
	mean    fairqueue.Mean // seconds that those who take turns hold a slot
	recent  recent         // the same, of the last ones in shadow
	warm    warmUp
	used    bool // it has had a request

	without fairqueue.Rules // only tests set it
}

// Now returns the time that the zone goes by.
func (z *Zone) Now() time.Time { return clock.Now(z.Clock) }

// A keyState holds the queues and slots of a key. It exists while the key has
// requests.
type keyState struct {
	key       string
	delayed   queue                          // until their delay is over
	slots     fairqueue.Queue                // and who waits for one
	counted   struct{ running, waiting int } // of those, in the totals of the zone
	limits    fairqueue.Limits               // as the last request or config has set them
	advancing int                            // goroutines that let requests have their slots
	pace      pace                           // of the upstream, in shadow
}

// keyStates are used again: most keys come and go with each request.
var keyStates = sync.Pool{New: func() any { return new(keyState) }}

// Vacant reports whether one of n slots of a key is free. Nothing is reserved:
// the slot may be gone at the next moment.
func (z *Zone) Vacant(key string, n int) bool {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.coldStart()
	n = z.slots(n)
	k := z.keys[key]
	return k == nil || k.slots.Running() < n && k.slots.Len() == 0
}

// Counts returns how many requests wait, for their delay or for a slot, and how
// many hold one.
func (z *Zone) Counts() (waiting, served int) {
	z.mu.Lock()
	defer z.mu.Unlock()
	return z.waiting, z.served
}

// MostServed returns how many slots the key holds that holds most.
func (z *Zone) MostServed() (most int) {
	z.mu.Lock()
	defer z.mu.Unlock()
	for _, k := range z.keys {
		most = max(most, k.slots.Running())
	}
	return most
}

// delay puts w into the delay queue of its key, if less than most requests wait.
func (z *Zone) delay(w *waiter, most int) bool {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.waiting >= most {
		return false
	}
	z.waiting++
	z.state(w.key).delayed.add(w)
	return true
}

// leave takes w out of its queue. It reports false if w has gone on already.
// After that the caller calls wake.
func (z *Zone) leave(w *waiter) bool {
	z.mu.Lock()
	defer z.mu.Unlock()
	switch c := w.claim; {
	case w.in != nil:
		w.in.remove(w)
		z.waiting--
	case c != nil && c.key != nil && c.key.slots.Leave(&c.Request):
		z.count(c.key)
		c.key = nil
	default:
		return false
	}
	return true
}

// due notes that the delay of w is over.
func (z *Zone) due(w *waiter) {
	z.mu.Lock()
	w.due = true
	z.mu.Unlock()
	z.wake(w.key)
}

// wake resumes the requests of a key that have nothing left to wait for. The
// caller holds no request's lock.
func (z *Zone) wake(key string) {
	z.mu.Lock()
	defer z.mu.Unlock()
	if k := z.keys[key]; k != nil {
		z.advance(k)
	}
}

// wakeAll is wake for all keys.
func (z *Zone) wakeAll() {
	z.mu.Lock()
	keys := slices.Collect(maps.Keys(z.keys))
	z.mu.Unlock()
	for _, key := range keys {
		z.wake(key)
	}
}

// moved lets the next ones of a key go on, after one whose delay is over has woken up.
func (z *Zone) moved(k *keyState) {
	z.mu.Lock()
	defer z.mu.Unlock()
	k.delayed.moving = false
	z.advance(k)
}

func (z *Zone) advance(k *keyState) {
	if z.advanceDelayed(k) {
		z.advanceSlots(k)
		z.forget(k)
	}
}

// advanceDelayed lets requests go on whose delay is over, one after the other. It unlocks
// the zone while each of them takes its next step. It reports false if one of them
// has to wake up first: whoever does calls moved, and k may be forgotten by now.
func (z *Zone) advanceDelayed(k *keyState) bool {
	q := &k.delayed
	for w := q.next(); w != nil; w = q.next() {
		q.remove(w)
		z.waiting--
		q.moving = true
		z.mu.Unlock()
		moved := w.request.resume(w, k)
		z.mu.Lock()
		if !moved {
			return false
		}
		q.moving = false
	}
	return true
}

// state finds or makes the state of a key.
func (z *Zone) state(key string) *keyState {
	k := z.keys[key]
	if k == nil {
		z.coldStart()
		if z.keys == nil {
			z.keys = make(map[string]*keyState)
		}
		k = keyStates.Get().(*keyState)
		k.key = key
		k.slots.Mean, k.slots.Without = &z.mean, z.without
		z.keys[key] = k
		z.used = true
	}
	return k
}

// forget drops the state of a key after its last request.
func (z *Zone) forget(k *keyState) {
	if k.advancing == 0 && k.pace.running == 0 && k.delayed.empty() && k.slots.Idle() {
		delete(z.keys, k.key)
		k.key = ""
		if z.warm.lasts > 0 && len(z.keys) == 0 {
			z.warm.idle = z.Now()
		}
		k.slots.Reset()
		k.pace, k.limits = pace{}, fairqueue.Limits{}
		keyStates.Put(k)
	}
}

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
