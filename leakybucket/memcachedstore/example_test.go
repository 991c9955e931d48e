package memcachedstore_test

import (
	"context"
	"log"

	"github.com/bradfitz/gomemcache/memcache"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memcachedstore"
)

// All processes that use the servers share the limit. In production, put package sharedstore
// around the store: it has a timeout, and goes on with a share of the limit in an outage.
func ExampleStore() {
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
		log.Printf("too many logins: come back in %v", r.RetryAfter)
	}
}

// Programs with different prefixes share servers, and no buckets.
func ExampleOptions() {
	client := memcache.New("10.0.0.8:11211", "10.0.0.9:11211")
	client.MaxIdleConns = 16
	store, err := memcachedstore.New(client, memcachedstore.Options{Prefix: "shop"})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close() // leaves the client open
}
