package caddymodule

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/sharedstore"
)

// A SharedStore is a store outside of this process. Configs with the same options
// share one, so a reload keeps its connections.
type SharedStore struct {
	*sharedstore.Backend
	name string

	// How long calls take; nil before the store is counted.
	seconds atomic.Pointer[prometheus.Observer]

	outage atomic.Pointer[outage] // that lasts

	mu      sync.Mutex
	counted bool   // it is among the stores in the metrics
	configs int    // how many have started and not stopped
	began   uint64 // when the first of them started, as a value of storesStarted
}

// An outage of a shared store.
type outage struct {
	since time.Time
	why   string
}

// A StoreKey is a module's reference to a SharedStore. The zero value refers to none.
type StoreKey struct{ key string }

// ConnectStore returns the shared store of a name and its options, or creates it with
// open. Stores with different options are different stores. Options may be secret:
// only a digest is kept. Nothing connects before a config with the store starts. The
// caller must release the key.
func ConnectStore(name string, options []string, open func() (sharedstore.Remote, error)) (*SharedStore, StoreKey, error) {
	text, err := json.Marshal(options)
	if err != nil {
		return nil, StoreKey{}, err
	}
	k := StoreKey{key: fmt.Sprintf("store %s %x", name, sha256.Sum256(text))}
	s, err := join(k.key, func() (*SharedStore, error) {
		remote, err := open()
		if err != nil {
			return nil, err
		}
		local, err := joinMemory(defaultMaxBuckets)
		if err != nil {
			return nil, err
		}
		s := &SharedStore{Backend: sharedstore.NewBackend(name, remote, local.Store), name: name}
		s.OnCall(func(took time.Duration) {
			if seconds := s.seconds.Load(); seconds != nil {
				(*seconds).Observe(took.Seconds())
			}
		})
		s.OnClose(func() {
			_ = leave(memoryKey) // fails for no key that was joined
			if s.mu.Lock(); s.counted {
				countStore(name, -1)
			}
			s.mu.Unlock()
		})
		return s, nil
	})
	if err != nil {
		return nil, StoreKey{}, err
	}
	return s, k, nil
}

// Release releases the store, which closes when no config uses it any more.
func (k StoreKey) Release() error {
	if k.key == "" {
		return nil // it was never opened
	}
	return leave(k.key)
}

// storesStarted counts how often a store has come into use, to tell which is
// older.
var storesStarted atomic.Uint64

// start attaches the observer of a config that starts.
func (s *SharedStore) start(o sharedstore.Observer) {
	s.mu.Lock()
	if !s.counted {
		s.counted = true
		countStore(s.name, 1)
		seconds := storeSeconds.WithLabelValues(s.name)
		s.seconds.Store(&seconds)
	}
	if s.configs++; s.configs == 1 {
		s.began = storesStarted.Add(1)
	}
	s.mu.Unlock()
	s.Attach(o)
}

// stop undoes start.
func (s *SharedStore) stop(o sharedstore.Observer) {
	s.Detach(o)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.configs--
}

// running reports whether a config with the store has started, and when the first
// did, as a value of storesStarted.
func (s *SharedStore) running() (began uint64, runs bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.began, s.configs > 0
}

// A storeObserver logs and counts the outages and errors of a shared store, and
// emits events about them.
type storeObserver struct{ app *engine }

// Down implements sharedstore.Observer.
func (o *storeObserver) Down(err error) {
	name := o.app.shared.name
	storeOutages.WithLabelValues(name).Inc()
	o.app.shared.outage.Store(&outage{time.Now(), err.Error()})
	fields := []zap.Field{zap.String("store", name), zap.Error(err)}
	if shards, down := o.app.shared.Shards(); shards > 1 {
		fields = append(fields, zap.Int("shards", shards), zap.Int("shards_down", down))
	}
	o.app.logger.Error("the store is down; until it is up again, zones fall back as their on_store_error says", fields...)
	o.app.emit(event{"throttle_store_down", map[string]any{"store": name, "error": err.Error()}})
}

// Up implements sharedstore.Observer.
func (o *storeObserver) Up(after time.Duration) {
	name := o.app.shared.name
	o.app.shared.outage.Store(nil)
	o.app.logger.Info("the store is up again", zap.String("store", name), zap.Duration("down_for", after))
	o.app.emit(event{"throttle_store_up", map[string]any{"store": name, "seconds": after.Seconds()}})
}

// Failed implements sharedstore.Observer.
func (o *storeObserver) Failed(what string, err error) {
	o.app.logger.Error(what, zap.String("store", o.app.shared.name), zap.Error(err))
}

// Errors implements sharedstore.Observer.
func (o *storeObserver) Errors(calls int) {
	storeErrors.WithLabelValues(o.app.shared.name).Add(float64(calls))
}

// Unsettled implements sharedstore.Observer.
func (o *storeObserver) Unsettled(zone string, charges int) {
	if z := o.app.zones[zone]; z != nil {
		z.Unsettled(charges)
	}
}

// Warned implements sharedstore.Observer.
func (o *storeObserver) Warned(text string) {
	o.app.warner.Warn(text, zap.String("store", o.app.shared.name))
}

// subscriptions returns what somebody subscribes to. Caddy takes no subscription after
// its configuration was provisioned, so no request comes before the last one.
func (a *engine) subscriptions() subscriptions {
	return subscriptions{
		blocks: a.subscribers.ShouldEmit(eventBlocked),
		keys:   a.subscribers.ShouldEmit(eventOverflow) || a.subscribers.ShouldEmit(eventRecovered),
	}
}

// emit emits an event of Caddy's.
func (a *engine) emit(e event) {
	a.subscribers.Emit(a.ctx, e.name, e.data)
}

// FillIn fills in the placeholders in options of a store, such as {env.X} and
// {file.X}. A placeholder without a value is an error. Errors show no values.
func FillIn(options ...string) ([]string, error) {
	repl := caddy.NewReplacer()
	filled := make([]string, len(options))
	for i, option := range options {
		var err error
		if filled[i], err = repl.ReplaceOrErr(option, true, true); err != nil {
			return nil, fmt.Errorf("filling in placeholders: %w", err)
		}
	}
	return filled, nil
}

// Interface guards
var (
	_ caddy.Destructor     = (*SharedStore)(nil)
	_ sharedstore.Observer = (*storeObserver)(nil)
)
