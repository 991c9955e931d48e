package memstore_test

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
)

// Each client may send three requests at once, then one a second.
func ExampleLimiter() {
	limiter, err := memstore.NewLimiter(leakybucket.Limit{Capacity: 3, Leak: 1}, memstore.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, client := range []string{"203.0.113.7", "203.0.113.7", "203.0.113.7", "203.0.113.7", "198.51.100.1"} {
		if d := limiter.Take(client, 1); d.Fits {
			fmt.Printf("%s: welcome, %.0f more\n", client, math.Round(d.Remaining))
		} else {
			fmt.Printf("%s: come back in %v\n", client, d.RetryAfter.Round(time.Second))
		}
	}
	// Output:
	// 203.0.113.7: welcome, 2 more
	// 203.0.113.7: welcome, 1 more
	// 203.0.113.7: welcome, 0 more
	// 203.0.113.7: come back in 1s
	// 198.51.100.1: welcome, 2 more
}

// A login is charged to the client and to the account at once: it takes both
// to fit, and if one does not, neither is poured.
func ExampleStore() {
	store := memstore.New(memstore.Options{MaxBuckets: 100_000})
	perClient := leakybucket.Limit{Capacity: 10, Leak: 10. / 3600}
	perAccount := leakybucket.Limit{Capacity: 2, Leak: 2. / 3600}

	login := func(client, account string) {
		charges := []leakybucket.Charge{
			{Zone: "clients", Key: client, Limit: perClient, Cost: 1},
			{Zone: "accounts", Key: account, Limit: perAccount, Cost: 1},
		}
		decisions := make([]leakybucket.Decision, len(charges))
		if err := store.Take(context.Background(), charges, decisions); err != nil {
			fmt.Println(err)
			return
		}
		wait := time.Duration(0)
		for i, d := range decisions {
			wait = max(wait, charges[i].Limit.TimeToFit(d.Level, charges[i].Cost))
		}
		if wait > 0 {
			fmt.Printf("%s as %s: come back in %v\n", client, account, wait.Round(time.Minute))
			return
		}
		fmt.Printf("%s as %s: welcome\n", client, account)
	}
	login("203.0.113.7", "alice")
	login("198.51.100.1", "alice")
	login("203.0.113.7", "alice")
	login("203.0.113.7", "bob")
	// Output:
	// 203.0.113.7 as alice: welcome
	// 198.51.100.1 as alice: welcome
	// 203.0.113.7 as alice: come back in 30m0s
	// 203.0.113.7 as bob: welcome
}
