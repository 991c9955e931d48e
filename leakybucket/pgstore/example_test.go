package pgstore_test

import (
	"context"
	"log"
	"os"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/pgstore"
)

// Several buckets of one table are charged in one step, all or none. Without package
// sharedstore the caller decides what an outage means.
func ExampleStore() {
	store, err := pgstore.Open("postgres://app@127.0.0.1:5432/app", pgstore.Options{Prefix: "shop"})
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
		return
	}
	for i := range charges {
		if d := &decisions[i]; !d.Fits {
			log.Printf("too many requests for %s: come back in %v", charges[i].Zone, charges[i].RetryAfter(d))
		}
	}
}

// The buckets outlive a crash of the server, in a table of this program's own schema.
func ExampleOptions() {
	store, err := pgstore.Open("postgres://app@127.0.0.1:5432/app", pgstore.Options{
		Password: os.Getenv("PGPASSWORD"), Table: "shop.buckets", Logged: true,
		OnError: func(err error) { log.Print(err) },
	})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	store.Start() // deletes expired buckets from now on
}
