package sharedstore_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/sharedstore"
)

// A server stands in for Redis or PostgreSQL, so that this example needs none. Programs pass
// the result of redisstore.New or pgstore.New.
type server struct {
	*memstore.Store
	down bool
}

func (s *server) Take(ctx context.Context, charges []leakybucket.Charge, decisions []leakybucket.Decision) error {
	if s.down {
		return errors.New("connection refused")
	}
	return s.Store.Take(ctx, charges, decisions)
}

// Two nodes share a limit of six requests. When the server fails, each goes on with half of it.
func ExampleStore() {
	remote := &server{Store: memstore.New(memstore.Options{})}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	store := sharedstore.New(remote, sharedstore.Options{
		Timeout: 50 * time.Millisecond,
		Nodes:   2,
		// Zones without a policy go by Local. Logins are refused while nobody can count them.
		Zone: func(zone string) (o sharedstore.ZoneOptions) {
			if zone == "login" {
				o.Policy = sharedstore.Deny
			}
			return o
		},
	}, sharedstore.Log(log))
	defer store.Close()

	take := func(zone, key string) {
		charges := []leakybucket.Charge{{Zone: zone, Key: key, Limit: leakybucket.Limit{Capacity: 6, Leak: 0.001}, Cost: 1}}
		decisions := make([]leakybucket.Decision, 1)
		if err := store.Take(context.Background(), charges, decisions); err != nil {
			fmt.Println(err)
			return
		}
		d := &decisions[0]
		fmt.Printf("%s %s: fits %v, the store answered %v\n", zone, key, d.Fits, !d.Local && !d.Undecided)
	}
	take("pages", "203.0.113.7")
	take("login", "203.0.113.7")
	remote.down = true
	take("login", "203.0.113.7")
	for range 4 {
		take("pages", "198.51.100.1")
	}
	// Output:
	// pages 203.0.113.7: fits true, the store answered true
	// login 203.0.113.7: fits true, the store answered true
	// login 203.0.113.7: fits false, the store answered false
	// pages 198.51.100.1: fits true, the store answered false
	// pages 198.51.100.1: fits true, the store answered false
	// pages 198.51.100.1: fits true, the store answered false
	// pages 198.51.100.1: fits false, the store answered false
}
