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

var remote leakybucket.Store // such as redisstore.Open returns

// A program that reads its config again keeps the backend, with its connections and the state
// of an outage, and replaces the store.
func ExampleBackend() {
	backend := sharedstore.NewBackend("redis", remote, memstore.New(memstore.Options{}))
	defer backend.Close()
	backend.Attach(sharedstore.Log(slog.Default()))
	for _, nodes := range []int{2, 3} {
		store := backend.With(sharedstore.Options{Nodes: nodes})
		fmt.Println(store.AnyBlock())
	}
}

// A page for an operator says why the store is down, and since when.
func ExampleOutage() {
	remote := &server{Store: memstore.New(memstore.Options{})}
	backend := sharedstore.NewBackend("redis", remote, memstore.New(memstore.Options{}))
	defer backend.Close()
	limiter, err := leakybucket.NewLimiter(backend.With(sharedstore.Options{}), leakybucket.Limit{Capacity: 10, Leak: 1}, leakybucket.LimiterOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	backend.Await(context.Background())
	fmt.Println(backend.Outage() == nil)
	remote.down = true
	for range 3 {
		limiter.Allow("203.0.113.7")
	}
	if o := backend.Outage(); o != nil {
		fmt.Println(o.Why, time.Since(o.Since) < time.Hour)
	}
	// Output:
	// true
	// connection refused true
}

// Alerts ring a bell when an outage begins, and leave the rest to the log.
type alerts struct{ sharedstore.Observer }

func (a alerts) Down(err error) {
	fmt.Print("\a")
	a.Observer.Down(err)
}

func ExampleObserver() {
	store := sharedstore.New(remote, sharedstore.Options{}, alerts{sharedstore.Log(slog.Default())})
	defer store.Close()
}

func ExamplePolicy() {
	for _, name := range []string{"local", "refuse"} {
		policy, err := sharedstore.ParsePolicy(name)
		fmt.Println(policy, err)
	}
	// Output:
	// local <nil>
	// local invalid policy "refuse": want local, allow or deny
}

// Three nodes share a server that may be far away.
func ExampleOptions() {
	store := sharedstore.New(remote, sharedstore.Options{Timeout: 200 * time.Millisecond, Nodes: 3}, sharedstore.Log(slog.Default()))
	defer store.Close()
}

// Uploads cost up to 50. In an outage each node has a share of the limit that one still fits.
func ExampleZoneOptions() {
	zones := map[string]sharedstore.ZoneOptions{
		"uploads": {MaxCost: 50},
		"login":   {Policy: sharedstore.Deny},
	}
	store := sharedstore.New(remote, sharedstore.Options{Nodes: 3, Zone: func(name string) sharedstore.ZoneOptions { return zones[name] }}, nil)
	defer store.Close()
}
