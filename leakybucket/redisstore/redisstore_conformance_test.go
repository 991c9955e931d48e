package redisstore

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/redisstore/redistest"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest"
)

func TestStoreKeepsTheContract(t *testing.T) {
	storetest.Run(t, opener("redis://"+redistest.Start(t).Addr))
}

func TestStoreKeepsTheContractInACluster(t *testing.T) {
	storetest.Run(t, opener(redistest.StartCluster(t).URL()))
}

// BenchmarkTake runs as BenchmarkTake/store=redis/keys=1/result=allowed and the
// like.
func BenchmarkTake(b *testing.B) {
	server := redistest.Start(b)
	b.Run("store=redis", func(b *testing.B) { storetest.Benchmark(b, opener("redis://"+server.Addr)) })
}

var prefixes atomic.Int64

// opener opens stores that share a server, each with a prefix of its own.
func opener(url string) storetest.Open {
	return func(tb testing.TB, _ storetest.Need) (leakybucket.Store, func(leakybucket.Instant)) {
		s := open(tb, Options{URL: url, Prefix: fmt.Sprintf("test%d:", prefixes.Add(1))})
		return s, func(at leakybucket.Instant) { s.held.Store(int64(at)) }
	}
}

func open(tb testing.TB, o Options) *Store {
	tb.Helper()
	s, err := New(o)
	if err != nil {
		tb.Fatalf("opening a store: %v", err)
	}
	tb.Cleanup(func() { _ = s.Close() })
	return s
}
