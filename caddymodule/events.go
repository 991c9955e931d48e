package caddymodule

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
)

// The events about keys.
const (
	eventOverflow  = "throttle_overflow"
	eventRecovered = "throttle_recovered"
	eventBlocked   = "throttle_blocked"
)

const (
	// mostEvents is how many events wait for a slow subscriber. More are dropped.
	mostEvents = 1000

	// mostOverflowing is how many keys of a zone may overflow at once. Nothing is
	// told of others.
	mostOverflowing = 1000

	// calm is how long a key must not have been refused to have recovered.
	calm = time.Minute
)

// An eventQueue passes events to subscribers in a goroutine of its own, so that no
// request waits for them. It is closed before the config's context ends.
type eventQueue struct {
	emit    func(name string, data map[string]any)
	dropped prometheus.Counter

	mu      sync.Mutex
	waiting []event
	running bool
	closed  bool
}

type event struct {
	name string
	data map[string]any
}

// add queues an event.
func (q *eventQueue) add(name string, data map[string]any) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed:
		return
	case len(q.waiting) >= mostEvents:
		q.dropped.Inc()
		return
	}
	q.waiting = append(q.waiting, event{name, data})
	if !q.running {
		q.running = true
		go q.run()
	}
}

// run passes on all events, and ends when there is none left.
func (q *eventQueue) run() {
	for {
		q.mu.Lock()
		if len(q.waiting) == 0 {
			q.running = false
			q.mu.Unlock()
			return
		}
		next := q.waiting[0]
		q.waiting = q.waiting[1:]
		q.mu.Unlock()
		q.emit(next.name, next.data)
	}
}

// close drops what waits. Nothing is queued after it.
func (q *eventQueue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed, q.waiting = true, nil
}

// overflows tell subscribers which keys of a zone begin and cease to be refused.
type overflows struct {
	zone   string
	shadow bool
	wanted func() subscriptions
	queue  *eventQueue

	mu   sync.Mutex
	keys map[string]*overflow
}

// subscriptions are the events that somebody wants to know of.
type subscriptions struct {
	keys   bool // that overflow or recover
	blocks bool
}

// An overflow is a key that is being refused.
type overflow struct {
	began, last time.Time
	requests    int
}

// note tells subscribers of a refusal, if it is the first of its key or begins a block.
func (f *overflows) note(o *decision.Outcome) {
	wanted := f.wanted()
	if o.Began && wanted.blocks {
		f.queue.add(eventBlocked, f.data(o.Key, "seconds", o.Block.Seconds()))
	}
	why := o.Reason()
	if !why.Waits() || why == decision.NoStore || why == decision.Banned || !wanted.keys {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	k := f.keys[o.Key]
	if k == nil {
		if len(f.keys) >= mostOverflowing {
			return
		}
		if f.keys == nil {
			f.keys = make(map[string]*overflow)
		}
		k = &overflow{began: now}
		f.keys[o.Key] = k
		f.queue.add(eventOverflow, f.data(o.Key, "reason", why.String()))
		f.watch(o.Key, calm)
	}
	k.last = now
	k.requests++
}

// watch looks at a key after a while. If it was not refused lately, it has recovered.
func (f *overflows) watch(key string, after time.Duration) {
	time.AfterFunc(after, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		k := f.keys[key]
		if left := calm - time.Since(k.last); left > 0 {
			f.watch(key, left)
			return
		}
		delete(f.keys, key)
		data := f.data(key, "seconds", k.last.Sub(k.began).Seconds())
		data["requests"] = k.requests
		f.queue.add(eventRecovered, data)
	})
}

func (f *overflows) data(key, name string, value any) map[string]any {
	return map[string]any{"zone": f.zone, "key": key, "shadow": f.shadow, name: value}
}
