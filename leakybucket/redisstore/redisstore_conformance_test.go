package redisstore

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
)

func TestStoreKeepsTheContract(t *testing.T) {
	storetest.Run(t, opener("redis://"+servertest.StartRedis(t).Addr, "test%d:"))
}

func TestStoreKeepsTheContractInACluster(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: the same as on one server; run without -short")
	}
	storetest.Run(t, opener(servertest.StartRedisCluster(t).URL(), "{test%d}:"))
}

// BenchmarkTake runs as BenchmarkTake/store=redis/keys=1/result=allowed and the
// like.
func BenchmarkTake(b *testing.B) {
	server := servertest.StartRedis(b)
	b.Run("store=redis", func(b *testing.B) { storetest.Benchmark(b, opener("redis://"+server.Addr, "test%d:")) })
}

var prefixes atomic.Int64

// opener opens stores that share a server, each with a prefix of its own.
func opener(url, prefix string) storetest.Open {
	return func(tb testing.TB, _ storetest.Need) (leakybucket.Store, func(leakybucket.Instant)) {
		s := open(tb, url, Options{Prefix: fmt.Sprintf(prefix, prefixes.Add(1))})
		return s, func(at leakybucket.Instant) { s.held.Store(int64(at)) }
	}
}

func open(tb testing.TB, url string, o Options) *Store {
	tb.Helper()
	s, err := Open(url, o)
	if err != nil {
		tb.Fatalf("opening a store: %v", err)
	}
	tb.Cleanup(s.Close)
	return s
}
