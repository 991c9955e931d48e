package storetest_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest"
)

// A mapStore is all that a store must do: it keeps states under names, and leaves each
// decision to package leakybucket. It forgets nothing, so its memory has no bound.
type mapStore struct {
	mu      sync.Mutex
	now     func() leakybucket.Instant
	buckets map[bucketName]leakybucket.State
}

type bucketName struct {
	zone, key string
	shadow    bool
}

func nameOf(c *leakybucket.Charge) bucketName { return bucketName{c.Zone, c.Key, c.Shadow} }

func (s *mapStore) Take(ctx context.Context, charges []leakybucket.Charge, decisions []leakybucket.Decision) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	states := make([]leakybucket.State, len(charges))
	for i := range charges {
		states[i] = s.buckets[nameOf(&charges[i])]
	}
	store.TakeAll(charges, states, s.now(), decisions)
	for i := range charges { // the last of several charges of one bucket has its final state
		if states[i] != (leakybucket.State{}) {
			s.buckets[nameOf(&charges[i])] = states[i]
		}
	}
	return nil
}

func (s *mapStore) Settle(ctx context.Context, settlements []leakybucket.Settlement) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range settlements {
		name := nameOf(&settlements[i].Charge)
		if state, kept := s.buckets[name]; kept || settlements[i].Creates() {
			s.buckets[name] = settlements[i].Apply(state, s.now())
		}
	}
	return nil
}

// The test of a store is one call.
func ExampleOpen() {
	_ = func(t *testing.T) { // func TestStore(t *testing.T)
		storetest.Run(t, openMapStore)
	}
}

// openMapStore opens a store whose clock the suite can set.
func openMapStore(testing.TB, storetest.Need) (leakybucket.Store, func(leakybucket.Instant)) {
	now := func() leakybucket.Instant { return leakybucket.Instant(time.Now().UnixMicro()) }
	s := &mapStore{now: now, buckets: make(map[bucketName]leakybucket.State)}
	return s, func(to leakybucket.Instant) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.now = func() leakybucket.Instant { return to }
	}
}
