package sharedstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
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

// reconcileAll tells the store of releases, and asks for all buckets in the ledger, but
// for those of shards that are down.
func (s *Store) reconcileAll(ctx context.Context) {
	b := s.backend
	for _, name := range b.releases.Names(time.Now()) {
		if ctx.Err() != nil {
			return
		}
		_ = s.release(ctx, name) // the breaker sees to it that not all of them wait
	}
	for names := range slices.Chunk(b.ledger.Names(time.Now()), mostAtOnce) {
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

// ErrLater is in the tree of an error of [Store.Reset] after which this node has
// forgotten the bucket, and will tell the store.
var ErrLater = errors.New("the store is told when it is back")

// ageless is for how long a release waits for the store: no block is longer.
const ageless = 20 * 365 * 24 * time.Hour

// Reset implements [leakybucket.Resetter], and makes this node forget the bucket
// too. If the store does not hear of it, the error wraps [ErrLater].
func (s *Store) Reset(ctx context.Context, zone, key string, shadow bool) error {
	b, name := s.backend, bucket{zone, key, shadow}
	b.watch.buckets.Delete(name)
	b.ledger.Delete(name)
	if err := b.local.Reset(ctx, zone, key, shadow); err != nil {
		return err
	}
	err := s.resetShared(ctx, name)
	if err == nil {
		b.releases.Delete(name)
		return nil
	}
	if now := time.Now(); b.releases.Put(name, now, now.Add(ageless), now) {
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
	at, found := b.releases.Get(name, time.Now())
	if !found {
		return nil
	}
	if err := s.resetShared(ctx, name); err != nil {
		return err
	}
	if again, _ := b.releases.Get(name, time.Now()); again.Equal(at) {
		b.releases.Delete(name)
	}
	return nil
}

// releaseAll tells the store of releases before it is asked for these buckets, and
// reports whether it has heard of all.
func (s *Store) releaseAll(ctx context.Context, charges []leakybucket.Charge) bool {
	if s.backend.releases.Empty() {
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
