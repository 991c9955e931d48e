package sharedstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

const (
	// reconcileEvery leaves time for doubtful calls to be executed.
	reconcileEvery = 2 * patience

	// mostAtOnce is how many buckets one call asks for.
	mostAtOnce = 250
)

// keepReconciling lets the buckets in the ledger be asked for, so that the store is told even
// of buckets without further requests. It is asked as by the config that noted something last.
func (s *Store) keepReconciling() {
	b := s.backend
	b.noted.Store(s)
	b.reconciling.Do(func() { go b.reconcile() })
}

func (b *Backend) reconcile() {
	ticker := time.NewTicker(reconcileEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			b.noted.Load().reconcileAll(b.ending)
		case <-b.ending.Done():
			return
		}
	}
}

// reconcileAll tells the store of releases, and asks for all buckets of which it is to be
// told, but for those of shards that are down.
func (s *Store) reconcileAll(ctx context.Context) {
	b := s.backend
	var probes []leakybucket.Charge
	for _, name := range b.ledger.names() {
		now := time.Now()
		switch e, found := b.ledger.get(name, now); {
		case !found:
			b.ledger.update(name, now, func(*entry, bool) {}) // drops it
		case s.zone(name.zone).Policy != Local:
			b.ledger.forget(name) // by another config than the one that made it
		case !e.telling && (e.own != 0 || e.blocked.After(now)):
			probes = append(probes, e.probe(name))
		}
	}
	for name := range b.releases.made.Range {
		if ctx.Err() != nil {
			return
		}
		_ = s.release(ctx, name.(bucket)) // the breaker sees to it that not all of them wait
	}
	for shard, all := range byShard(b, probes, itself) {
		for some := range slices.Chunk(all, mostAtOnce) {
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
	if s.backend.breakers.isOpenFor(shard) || s.Take(ctx, slices.Clone(probes), decisions) == nil && !FellBack(&decisions[0]) {
		return
	}
	for i := range probes {
		if len(probes) > 1 && !s.backend.breakers.isOpenFor(shard) {
			_ = s.Take(ctx, probes[i:i+1], decisions[:1])
		}
	}
}

// ErrLater is in the tree of an error of [Store.Reset] after which this node has
// forgotten the bucket, and will tell the store.
var ErrLater = errors.New("the store is told when it is back")

// releases are the buckets that were reset here and are yet to be reset in the store.
type releases struct {
	made  sync.Map // when, by bucket
	count atomic.Int32
}

const mostReleases = 100_000

// add keeps a release, and reports whether there was room.
func (r *releases) add(name bucket) (room bool) {
	if _, known := r.made.Load(name); !known && r.count.Load() >= mostReleases {
		return false
	}
	if _, known := r.made.Swap(name, time.Now()); !known {
		r.count.Add(1)
	}
	return true
}

// done drops a release, unless the bucket was reset again since it was made.
func (r *releases) done(name bucket, made any) {
	if r.made.CompareAndDelete(name, made) {
		r.count.Add(-1)
	}
}

// Reset implements [leakybucket.Resetter], and makes this node forget the bucket
// too. If the store does not hear of it, the error wraps [ErrLater].
func (s *Store) Reset(ctx context.Context, zone, key string, shadow bool) error {
	b, name := s.backend, bucket{zone, key, shadow}
	b.ledger.forget(name)
	if err := b.local.Reset(ctx, zone, key, shadow); err != nil {
		return err
	}
	made, _ := b.releases.made.Load(name)
	err := s.resetShared(ctx, name)
	switch {
	case err == nil:
		b.releases.done(name, made)
	case b.releases.add(name):
		s.keepReconciling()
		return fmt.Errorf("%w: %w", err, ErrLater)
	}
	return err
}

func (s *Store) resetShared(ctx context.Context, name bucket) error {
	b := s.backend
	shard := b.shardOf(&leakybucket.Charge{Zone: name.zone, Key: name.key, Shadow: leakybucket.ShadowIf(name.shadow)})
	if b.breakers.isOpenFor(shard) { // whose trials other calls are
		return ErrDown
	}
	c, admitted := b.begin(ctx, s.timeout, shard)
	if !admitted {
		return ErrDown
	}
	return b.end(c, "resetting a bucket", b.remote.Reset(c.ctx, name.zone, name.key, name.shadow))
}

// release tells the store of a release that it did not hear of. Without one it does
// nothing.
func (s *Store) release(ctx context.Context, name bucket) error {
	b := s.backend
	made, found := b.releases.made.Load(name)
	if !found {
		return nil
	}
	if err := s.resetShared(ctx, name); err != nil {
		return err
	}
	b.releases.done(name, made)
	return nil
}

// releaseAll tells the store of releases before it is asked for these buckets, and
// reports whether it has heard of all.
func (s *Store) releaseAll(ctx context.Context, charges []leakybucket.Charge) bool {
	if s.backend.releases.count.Load() == 0 {
		return true
	}
	for i := range charges {
		if s.release(ctx, bucketOf(&charges[i])) != nil {
			return false
		}
	}
	return true
}

// Interface guards
var _ leakybucket.Resetter = (*Store)(nil)
