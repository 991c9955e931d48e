package leakybucket_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest"
)

// The arithmetic of takes, blocks, settlements and clocks is told, step by step, in the cases
// of package storetest, which hold every store to it.
func TestTheArithmeticIsThatOfTheContract(t *testing.T) {
	storetest.Run(t, func(_ testing.TB, need storetest.Need) (leakybucket.Store, func(leakybucket.Instant)) {
		var held atomic.Int64
		store := memstore.New(memstore.Options{MaxBuckets: need.MaxBuckets, Clock: func() leakybucket.Instant {
			if at := held.Load(); at != 0 {
				return leakybucket.Instant(at)
			}
			return leakybucket.Instant(time.Now().UnixMicro())
		}})
		return store, func(at leakybucket.Instant) { held.Store(int64(at)) }
	})
}
