package store_test

import (
	"context"
	"fmt"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
)

var limit = leakybucket.Limit{Capacity: 10, Leak: 1e-6}

// filled returns a store with buckets of two clients.
func filled(o memstore.Options) leakybucket.Store {
	s := memstore.New(o)
	for _, key := range []string{"203.0.113.7", "198.51.100.1"} {
		charges := []leakybucket.Charge{{Zone: "login", Key: key, Limit: limit, Cost: 8}}
		_ = s.Take(context.Background(), charges, make([]leakybucket.Decision, 1)) // never fails in memory
	}
	return s
}

// What a store can do besides is asked for by type assertion.
func ExampleLister() {
	lister, can := filled(memstore.Options{}).(store.Lister)
	if !can {
		return
	}
	for entry, err := range store.ListAll(context.Background(), lister, store.Filter{Zone: "login", Prefix: "203.", Scan: 100}) {
		fmt.Println(entry.Key, entry.State.Level, err)
	}
	// Output: 203.0.113.7 8 <nil>
}

// Shadow buckets are listed by themselves.
func ExampleFilter() {
	lister := filled(memstore.Options{}).(store.Lister)
	for range store.ListAll(context.Background(), lister, store.Filter{Zone: "login", Shadow: true, Scan: 100}) {
		fmt.Println("got one")
	}
	// Output:
}

// A bucket has leaked since it was written.
func ExampleEntry() {
	entry := store.Entry{Key: "203.0.113.7", State: leakybucket.State{Level: 8, Leak: 2}, Now: leakybucket.Instant(0).Add(3 * time.Second)}
	fmt.Println(leakybucket.Limit{Capacity: 10, Leak: 2}.Level(entry.State, entry.Now))
	// Output: 2
}

func ExampleResetter() {
	s := filled(memstore.Options{})
	if resetter, can := s.(store.Resetter); can {
		_ = resetter.Reset(context.Background(), "login", "203.0.113.7", false)
	}
	fmt.Println(s.(*memstore.Store).Buckets())
	// Output: map[login:1]
}

// Servers keep short texts for all processes, such as who is banned.
func ExampleRegistry() {
	var s leakybucket.Store // such as redisstore.Open returns
	registry, can := s.(store.Registry)
	if !can {
		return
	}
	all, err := registry.Texts(context.Background(), -1)
	fmt.Println(all.Texts, err)
}

func ExampleText() {
	var registry store.Registry
	text := store.Text{Name: "ban 203.0.113.7", Number: 1, End: leakybucket.Instant(time.Now().Add(time.Hour).UnixMicro()), Text: "scraper"}
	before, last, err := registry.PutTexts(context.Background(), []store.Text{text})
	fmt.Println("written:", before != last, err)
}

// A process follows what others write.
func ExampleTexts() {
	var registry store.Registry
	for seen := int64(-1); ; <-time.After(time.Second) {
		if all, err := registry.Texts(context.Background(), seen); err == nil && all.Last != seen {
			seen = all.Last
			fmt.Println(all.Texts)
		}
	}
}
