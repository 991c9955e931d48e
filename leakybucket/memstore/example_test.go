package memstore_test

import (
	"context"
	"fmt"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
)

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
