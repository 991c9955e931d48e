package sharedstore

import (
	"context"
	"sync"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

const (
	// reconcileEvery leaves time for doubtful calls to be executed.
	reconcileEvery = 2 * patience

	// mostAtOnce is how many entries are looked up under one lock.
	mostAtOnce = 1000
)

// A reconciler asks the store for the buckets in the ledger, one after the other,
// so that the store is told even of buckets without further requests. It runs
// while the ledger has entries.
type reconciler struct {
	ending context.Context // of the backend

	mu      sync.Mutex
	running bool
	store   *Store // of the config that made the last entry
}

// start starts the reconciler unless it runs.
func (r *reconciler) start(s *Store) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.store = s
	if !r.running && r.ending.Err() == nil {
		r.running = true
		go r.run()
	}
}

// current returns the store to ask. If it returns nil, the reconciler must end.
func (r *reconciler) current() *Store {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ending.Err() != nil || len(r.store.backend.ledger.Some(1, time.Now())) == 0 {
		r.running = false
		return nil
	}
	return r.store
}

func (r *reconciler) run() {
	ticker := time.NewTicker(reconcileEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-r.ending.Done():
		}
		s := r.current()
		if s == nil {
			return
		}
		s.reconcileAll(r.ending)
	}
}

// reconcileAll asks for buckets in the ledger, while the store answers.
func (s *Store) reconcileAll(ctx context.Context) {
	b := s.backend
	for more := true; more; {
		names := b.ledger.Some(mostAtOnce, time.Now())
		asked := 0
		for _, name := range names {
			if b.breaker.isOpen() || ctx.Err() != nil {
				return
			}
			if s.zone(name.zone).Policy != Local {
				b.ledger.Delete(name) // by another config than the one that made it
				continue
			}
			e, found := b.ledger.Get(name, time.Now())
			if !found || e.telling || e.own == 0 || e.limit.Capacity == 0 {
				continue
			}
			var d [1]leakybucket.Decision
			_ = s.Take(ctx, []leakybucket.Charge{e.probe(name)}, d[:]) // which tells
			asked++
		}
		more = asked == mostAtOnce
	}
}
