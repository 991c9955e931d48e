package memcachedstore_test

import (
	"context"
	"log"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memcachedstore"
)

// All processes that use the servers share the limit. In production, put package sharedstore
// around the store: it has a timeout, and goes on with a share of the limit in an outage.
func Example() {
	store, err := memcachedstore.Open("127.0.0.1:11211", memcachedstore.Options{Prefix: "myapp"})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()

	limiter, err := leakybucket.NewLimiter(store, leakybucket.Limit{Capacity: 10, Leak: 0.5}, leakybucket.LimiterOptions{Zone: "login"})
	if err != nil {
		log.Fatal(err)
	}
	if r, _ := limiter.Take(context.Background(), "192.0.2.7", 1); !r.Fits {
		log.Printf("too many log-ins: come back in %v", r.RetryAfter)
	}
}
