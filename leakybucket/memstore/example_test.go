package memstore_test

import (
	"bytes"
	"context"
	"fmt"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
)

// What a process knows when it ends, the next one finds.
func ExampleStore() {
	limit := leakybucket.Limit{Capacity: 10, Leak: 1e-6}
	store := memstore.New(memstore.Options{MaxBuckets: 100_000})
	charges := []leakybucket.Charge{{Zone: "login", Key: "203.0.113.7", Limit: limit, Cost: 8}}
	if err := store.Take(context.Background(), charges, make([]leakybucket.Decision, 1)); err != nil {
		fmt.Println(err)
	}
	var file bytes.Buffer
	if err := store.WriteSnapshot(&file); err != nil {
		fmt.Println(err)
	}
	next := memstore.New(memstore.Options{})
	found, err := next.ReadSnapshot(file.Bytes(), func(c *leakybucket.Charge, _ leakybucket.State) bool {
		c.Limit = limit // which a snapshot does not keep
		return c.Zone == "login"
	})
	fmt.Println(found.Buckets, err, next.Buckets())
	// Output: 1 <nil> map[login:1]
}
