package store_test

import (
	"context"
	"fmt"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
)

// What a store can do besides is asked for by type assertion.
func ExampleLister() {
	ctx := context.Background()
	var of leakybucket.Store = memstore.New(memstore.Options{})
	charges := []leakybucket.Charge{{Zone: "login", Key: "203.0.113.7", Limit: leakybucket.Limit{Capacity: 10, Leak: 1e-6}, Cost: 8}}
	_ = of.Take(ctx, charges, make([]leakybucket.Decision, 1)) // never fails in memory
	if lister, can := of.(store.Lister); can {
		for entry, err := range store.ListAll(ctx, lister, store.Filter{Zone: "login", Prefix: "203.", Scan: 100}) {
			fmt.Println(entry.Key, entry.State.Level, err)
		}
	}
	if resetter, can := of.(store.Resetter); can {
		_ = resetter.Reset(ctx, "login", "203.0.113.7", false)
	}
	fmt.Println(of.(store.Counter).Buckets(), of.(store.Evicter).Evictions())
	// Output:
	// 203.0.113.7 8 <nil>
	// map[] 0
}
