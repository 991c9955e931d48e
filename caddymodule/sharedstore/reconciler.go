package sharedstore

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

const (
	// reconcileEvery leaves time for doubtful calls to be executed.
	reconcileEvery = 2 * patience

	// mostAtOnce is how many buckets one call asks for.
	mostAtOnce = 250
)

// A reconciler asks the store for the buckets in the ledger, many at once, so that the
// store is told even of buckets without further requests. It runs while the ledger has
// entries.
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
	if r.ending.Err() != nil || !r.store.backend.unreconciled() {
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

// reconcileAll tells the store of releases, and asks for all buckets in the ledger, but
// for those of shards that are down.
func (s *Store) reconcileAll(ctx context.Context) {
	b := s.backend
	for _, name := range b.releases.Some(most, time.Now()) {
		if ctx.Err() != nil {
			return
		}
		_ = s.release(ctx, name) // the breaker sees to it that not all of them wait
	}
	for names := range slices.Chunk(b.ledger.Some(mostEntries, time.Now()), mostAtOnce) {
		probes := make([]leakybucket.Charge, 0, len(names))
		for _, name := range names {
			if s.zone(name.zone).Policy != Local {
				b.ledger.Delete(name) // by another config than the one that made it
				continue
			}
			now := time.Now()
			e, found := b.ledger.Get(name, now)
			if found && !e.telling && (e.own != 0 || e.blocked.After(now)) && e.limit.Capacity != 0 {
				probes = append(probes, e.probe(name))
			}
		}
		for shard, some := range byShard(b, probes, itself) {
			if ctx.Err() != nil {
				return
			}
			s.askFor(ctx, shard, some)
		}
	}
}

func itself(c *leakybucket.Charge) *leakybucket.Charge { return c }

// askFor asks for some buckets of a shard at once, which tells the store. If one of them
// is no bucket, it asks for each by itself.
func (s *Store) askFor(ctx context.Context, shard int, probes []leakybucket.Charge) {
	decisions := make([]leakybucket.Decision, len(probes))
	if len(probes) == 0 || s.backend.breakers.isOpenFor(shard) || s.Take(ctx, slices.Clone(probes), decisions) == nil && !FellBack(&decisions[0]) {
		return
	}
	for i := range probes {
		if len(probes) > 1 && !s.backend.breakers.isOpenFor(shard) {
			_ = s.Take(ctx, probes[i:i+1], decisions[:1])
		}
	}
}
