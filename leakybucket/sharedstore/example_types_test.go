package sharedstore_test

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/sharedstore"
)

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
