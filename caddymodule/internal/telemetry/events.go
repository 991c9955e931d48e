package telemetry

import (
	"context"
	"sync"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
)

// The events about keys.
const (
	EventOverflow  = "throttle_overflow"
	EventRecovered = "throttle_recovered"
	EventBlocked   = "throttle_blocked"
)

const (
	// mostWaiting is how many events wait for a slow subscriber. More are dropped.
	mostWaiting = 1000

	// mostOverflowing is how many keys of a zone may overflow at once. Nothing is
	// told of others.
	mostOverflowing = 1000

	// calm is how long a key must not have been refused to have recovered.
	calm = time.Minute
)

// Background has functions that wait to be called, so that no request waits for those who are slow.
type Background chan func()

// NewBackground returns one that nobody runs yet.
func NewBackground() Background { return make(Background, mostWaiting) }

// Run calls the functions one after the other, until ctx is done.
func (b Background) Run(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case f := <-b:
			f()
		}
	}
}

// overflows tell subscribers which keys of a zone begin and cease to be refused.
type overflows struct {
	of     *Counts
	shadow bool

	mu   sync.Mutex
	keys map[string]*overflow
}

// An overflow is a key that is being refused.
type overflow struct {
	began, last time.Time
	requests    int
}

// note tells subscribers of a refusal, if it is the first of its key or begins a block.
func (f *overflows) note(o *limit.Outcome) {
	if o.Answer.Began && f.of.Wanted(EventBlocked) {
		f.emit(EventBlocked, f.data(o.Key, "seconds", o.Block.Seconds()))
	}
	why := o.Reason()
	if !why.Waits() || why == limit.NoStore || why == limit.Banned || !f.of.Wanted(EventOverflow) && !f.of.Wanted(EventRecovered) {
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
		k = &overflow{began: now}
		f.keys[o.Key] = k
		f.emit(EventOverflow, f.data(o.Key, "reason", why.String()))
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
		f.emit(EventRecovered, data)
	})
}

func (f *overflows) emit(name string, data map[string]any) {
	select {
	case f.of.Events <- func() { f.of.Emit(name, data) }:
	default:
		EventsDropped.Inc()
	}
}

func (f *overflows) data(key, name string, value any) map[string]any {
	return map[string]any{"zone": f.of.zone.Name, "key": key, "shadow": f.shadow, name: value}
}
