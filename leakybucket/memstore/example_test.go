package memstore_test

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
)

func ExampleStore() {
	store := memstore.New(memstore.Options{MaxBuckets: 100_000}) // in 10 MB
	charges := []leakybucket.Charge{{Zone: "login", Key: "203.0.113.7", Limit: leakybucket.Limit{Capacity: 10, Leak: 1}, Cost: 8}}
	decisions := make([]leakybucket.Decision, 1)
	err := store.Take(context.Background(), charges, decisions)
	fmt.Println(decisions[0].Fits, err, store.Buckets())
	// Output: true <nil> map[login:1]
}

// Traffic of a day is replayed in virtual time.
func ExampleOptions() {
	now := leakybucket.Instant(0)
	store := memstore.New(memstore.Options{Clock: func() leakybucket.Instant { return now }})
	limiter, err := leakybucket.NewLimiter(store, leakybucket.Limit{Capacity: 1, Leak: 1. / 3600}, leakybucket.LimiterOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 3 {
		fmt.Println(limiter.Allow("203.0.113.7"))
		now = now.Add(40 * time.Minute)
	}
	// Output:
	// true
	// false
	// true
}

// What a process knows when it ends, the next one finds.
func ExampleRestored() {
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
