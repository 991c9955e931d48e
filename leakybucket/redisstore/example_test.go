package redisstore_test

import (
	"context"
	"log"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/redisstore"
)

// All processes that share the server share the limit.
func Example() {
	store, err := redisstore.New(redisstore.Options{URL: "redis://127.0.0.1:6379/0", Prefix: "myapp:"})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()

	charges := []leakybucket.Charge{
		{Zone: "login", Key: "192.0.2.7", Limit: leakybucket.Limit{Capacity: 10, Leak: 0.5}, Cost: 1},
		{Zone: "site", Key: "192.0.2.7", Limit: leakybucket.Limit{Capacity: 100, Leak: 20}, Cost: 1},
	}
	decisions := make([]leakybucket.Decision, len(charges))
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if err := store.Take(ctx, charges, decisions); err != nil {
		log.Print(err) // admit or refuse the request without the store, as you prefer
	} else if !decisions[0].Poured {
		log.Print("too many requests")
	}
}
