package sharedstore

import (
	"context"
	"strconv"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
)

func benchmarkStore(tb testing.TB) (*Store, []leakybucket.Charge, []leakybucket.Decision) {
	b := NewBackend("instant", memstore.New(memstore.Options{}), memstore.New(memstore.Options{}))
	tb.Cleanup(func() { _ = b.Destruct() })
	b.Await(context.Background())
	limit := leakybucket.Limit{Capacity: 1e9, Leak: 1}
	charges := []leakybucket.Charge{{Zone: "a", Key: "192.0.2.1", Limit: limit, Cost: 1}, {Zone: "b", Key: "192.0.2.1", Limit: limit, Cost: 1}}
	return b.With(Options{Nodes: 2}), charges, make([]leakybucket.Decision, 2)
}

func BenchmarkTake(b *testing.B) {
	for _, state := range []string{"up", "down"} {
		for _, charges := range []int{1, 2} {
			b.Run("store="+state+"/charges="+strconv.Itoa(charges), func(b *testing.B) {
				s, all, decisions := benchmarkStore(b)
				s.backend.down.Store(state == "down")
				asked := make([]leakybucket.Charge, charges)
				b.ReportAllocs()
				for b.Loop() {
					copy(asked, all)
					if err := s.Take(context.Background(), asked, decisions[:charges]); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

func BenchmarkSettle(b *testing.B) {
	s, charges, decisions := benchmarkStore(b)
	if err := s.Take(context.Background(), charges, decisions); err != nil {
		b.Fatal(err)
	}
	settlements := []leakybucket.Settlement{{Charge: charges[0], Was: decisions[0], Diff: 1e-3}}
	b.ReportAllocs()
	for b.Loop() {
		if err := s.Settle(context.Background(), settlements); err != nil {
			b.Fatal(err)
		}
	}
}
