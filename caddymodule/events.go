package caddymodule

import (
	"sync"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/rule"
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

// A background passes items on in a goroutine of its own, in order, so that no request
// waits for those who are slow.
type background[T any] struct {
	pass func(T)
	most int // how many may wait

	mu      sync.Mutex
	waiting []T
	passed  chan struct{} // closed when none waits; nil if none does
	closed  bool
}

// add adds an item. It returns false if too many wait already. Nothing is added after
// close.
func (b *background[T]) add(item T) (room bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || len(b.waiting) >= b.most {
		return b.closed
	}
	b.waiting = append(b.waiting, item)
	if b.passed == nil {
		b.passed = make(chan struct{})
		go b.run()
	}
	return true
}

// run passes on all items, and ends when there is none left.
func (b *background[T]) run() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.waiting) > 0 {
		next := b.waiting[0]
		b.waiting = b.waiting[1:]
		b.mu.Unlock()
		b.pass(next)
		b.mu.Lock()
	}
	close(b.passed)
	b.passed = nil
}

// rest returns a channel that is closed when no item waits, or nil if none does.
func (b *background[T]) rest() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.passed
}

// close drops what waits.
func (b *background[T]) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed, b.waiting = true, nil
}

// An event is about a key.
type event struct {
	name string
	data map[string]any
}

// overflows tell subscribers which keys of a zone begin and cease to be refused.
type overflows struct {
	zone   string
	shadow bool
	wanted func() subscriptions
	queue  *background[event] // closed before the context of the config ends

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
		f.tell(eventBlocked, f.data(o.Key, "seconds", o.Block.Seconds()))
	}
	why := o.Reason()
	if !why.Waits() || why == rule.NoStore || why == rule.Banned || !wanted.keys {
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
		f.tell(eventOverflow, f.data(o.Key, "reason", why.String()))
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
		f.tell(eventRecovered, data)
	})
}

func (f *overflows) tell(name string, data map[string]any) {
	if !f.queue.add(event{name, data}) {
		eventsDropped.Inc()
	}
}

func (f *overflows) data(key, name string, value any) map[string]any {
	return map[string]any{"zone": f.zone, "key": key, "shadow": f.shadow, name: value}
}
