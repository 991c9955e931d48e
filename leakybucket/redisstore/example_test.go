package redisstore_test

import (
	"context"
	"log"
	"log/slog"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/redisstore"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/sharedstore"
)

// All processes that share the server share the limit. While the server is down, each goes
// on with a quarter of it, and tells the server afterwards.
func Example() {
	redis, err := redisstore.New(redisstore.Options{URL: "redis://127.0.0.1:6379/0", Prefix: "myapp:"})
	if err != nil {
		log.Fatal(err)
	}
	store := sharedstore.New(redis, sharedstore.Options{Nodes: 4}, sharedstore.Log(slog.Default()))
	defer store.Close()

	limiter, err := leakybucket.NewLimiter(store, leakybucket.Limit{Capacity: 10, Leak: 0.5}, leakybucket.LimiterOptions{Zone: "login"})
	if err != nil {
		log.Fatal(err)
	}
	if r, _ := limiter.Take(context.Background(), "192.0.2.7", 1); !r.Fits {
		log.Printf("too many log-ins: come back in %v", r.RetryAfter)
	}
}
