package redisstore_test

import (
	"context"
	"log"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/redisstore"
)

// All processes that share the server share the limit. In production, put package sharedstore
// around the store: it has a timeout, and goes on with a share of the limit in an outage.
func Example() {
	store, err := redisstore.Open("redis://127.0.0.1:6379/0", redisstore.Options{Prefix: "myapp:"})
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
