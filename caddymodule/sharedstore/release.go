package sharedstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

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
		b.reconciler.start(s)
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

// unreconciled reports whether there is anything to tell the store.
func (b *Backend) unreconciled() bool {
	now := time.Now()
	return len(b.ledger.Some(1, now)) > 0 || len(b.releases.Some(1, now)) > 0
}

// Interface guards
var _ leakybucket.Resetter = (*Store)(nil)
