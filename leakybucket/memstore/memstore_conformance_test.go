package memstore

import (
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest"
)

func TestStoreKeepsTheContract(t *testing.T) { storetest.Run(t, open) }

// BenchmarkTake runs as BenchmarkTake/store=memory/keys=1e6/order=uniform and
// the like.
func BenchmarkTake(b *testing.B) {
	b.Run("store=memory", func(b *testing.B) { storetest.Benchmark(b, open) })
}

// open opens a store that runs on its own clock until it is held.
func open(_ testing.TB, need storetest.Need) (leakybucket.Store, func(leakybucket.Instant)) {
	s := New(Options{MaxBuckets: need.MaxBuckets})
	return s, func(at leakybucket.Instant) {
		s.clock = func() leakybucket.Instant { return at }
	}
}
