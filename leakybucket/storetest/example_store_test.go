package storetest_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest"
)

// It is beside the example's file, because go doc shows a file whole if no test is in it.
func TestTheStoreOfTheExample(t *testing.T) { storetest.Run(t, openMapStore) }

// A store with a bound begins to drop buckets where the case says.
func ExampleNeed() {
	open := func(_ testing.TB, need storetest.Need) (leakybucket.Store, func(leakybucket.Instant)) {
		var held atomic.Int64
		s := memstore.New(memstore.Options{MaxBuckets: need.MaxBuckets, Clock: func() leakybucket.Instant {
			if at := held.Load(); at != 0 {
				return leakybucket.Instant(at)
			}
			return leakybucket.Instant(time.Now().UnixMicro())
		}})
		return s, func(at leakybucket.Instant) { held.Store(int64(at)) }
	}
	_ = func(t *testing.T) { storetest.Run(t, open) }
}

// A store says what it does not promise.
func ExamplePromise() {
	_ = func(t *testing.T) { storetest.Run(t, openMapStore, storetest.Forgetting, storetest.Eviction) }
}
