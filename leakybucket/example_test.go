package leakybucket_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
)

// Each client may send three requests at once, then one a second.
func ExampleLimiter() {
	store := memstore.New(memstore.Options{})
	limiter, err := leakybucket.NewLimiter(store, leakybucket.Limit{Capacity: 3, Leak: 1}, leakybucket.LimiterOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, client := range []string{"203.0.113.7", "203.0.113.7", "203.0.113.7", "203.0.113.7", "198.51.100.1"} {
		r, err := limiter.Take(context.Background(), client, 1)
		switch {
		case err != nil:
			fmt.Println(err) // never with a store in memory
		case r.Fits:
			fmt.Printf("%s: welcome, %.0f more\n", client, math.Round(r.Remaining))
		default:
			fmt.Printf("%s: come back in %v\n", client, r.RetryAfter.Round(time.Second))
		}
	}
	// Output:
	// 203.0.113.7: welcome, 2 more
	// 203.0.113.7: welcome, 1 more
	// 203.0.113.7: welcome, 0 more
	// 203.0.113.7: come back in 1s
	// 198.51.100.1: welcome, 2 more
}

// Two limiters of one store keep their buckets apart by their zones.
func ExampleLimiterOptions() {
	store := memstore.New(memstore.Options{})
	burst, err := leakybucket.NewLimiter(store, leakybucket.Limit{Capacity: 3, Leak: 1}, leakybucket.LimiterOptions{Zone: "burst"})
	day, err2 := leakybucket.NewLimiter(store, leakybucket.Limit{Capacity: 100, Leak: 100. / 86400}, leakybucket.LimiterOptions{Zone: "day"})
	if err := errors.Join(err, err2); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(burst.Allow("203.0.113.7") && day.Allow("203.0.113.7"), store.Buckets())
	// Output: true map[burst:1 day:1]
}

// A request is charged a unit, and settled once its true cost is known.
func ExampleResult() {
	limiter, err := leakybucket.NewLimiter(memstore.New(memstore.Options{}), leakybucket.Limit{Capacity: 10, Leak: 1}, leakybucket.LimiterOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	r, _ := limiter.Take(ctx, "203.0.113.7", 1)
	_ = limiter.Settle(ctx, "203.0.113.7", r, 4) // neither fails in memory
	r, _ = limiter.Take(ctx, "203.0.113.7", 8)
	fmt.Printf("fits: %v, level %.0f, %.0f left, come back in %v\n", r.Fits, r.Level, r.Remaining, r.RetryAfter.Round(time.Second))
	// Output: fits: false, level 4, 6 left, come back in 2s
}

// A form may be sent three times in a row, and then once in twenty minutes.
func ExampleBucket() {
	bucket, err := leakybucket.NewBucket(leakybucket.Limit{Capacity: 3, Leak: 3. / 3600})
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 4 {
		if r := bucket.Take(1); r.Fits {
			fmt.Println("sent")
		} else {
			fmt.Println("come back in", r.RetryAfter.Round(time.Minute))
		}
	}
	// Output:
	// sent
	// sent
	// sent
	// come back in 20m0s
}

// A loop that works jobs off, and sleeps when they cost more than it may spend: now, or within
// two seconds, or not at all.
func ExampleBucket_Wait() {
	bucket, err := leakybucket.NewBucket(leakybucket.Limit{Capacity: 10, Leak: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, cost := range []float64{8, 2, 5} {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		err := bucket.Wait(ctx, cost)
		cancel()
		switch {
		case err == nil:
			fmt.Println(cost, "passes")
		case errors.Is(err, context.DeadlineExceeded):
			fmt.Println(cost, "would take too long")
		}
	}
	// Output:
	// 8 passes
	// 2 passes
	// 5 would take too long
}

func ExampleLimit() {
	for _, text := range []string{"10 2/s", "10 per second"} {
		limit, err := leakybucket.ParseLimit(text)
		if err != nil {
			fmt.Println(err)
			continue
		}
		full := limit.Capacity
		fmt.Println("a cost of 6 fits a full bucket in", limit.TimeToFit(full, 6))
		fmt.Println("it is empty in", limit.TimeToEmpty(full))
		fmt.Println("a cost of 11 never fits:", limit.Oversize(11))
	}
	// Output:
	// a cost of 6 fits a full bucket in 3s
	// it is empty in 5s
	// a cost of 11 never fits: true
	// invalid limit "10 per second": want <capacity> <leak>, such as 10 1/s
}

// The functions of a limit know no clock. This follows a bucket that holds 3 and leaks 1.5 a
// second: a take pours what fits, a fill pours without asking.
func ExampleState() {
	limit := leakybucket.Limit{Capacity: 3, Leak: 1.5}
	var state leakybucket.State
	for _, step := range []struct {
		after time.Duration
		cost  float64
	}{{0, 2}, {0, 2}, {time.Second, 2}, {4 * time.Second, 3}} {
		var d leakybucket.Decision
		state, d = limit.Take(state, step.cost, leakybucket.Instant(0).Add(step.after))
		fmt.Printf("%4v: cost %v at level %v: %v\n", step.after, step.cost, d.Level, d.Fits)
	}
	_, level, full := limit.Fill(state, 9, leakybucket.Instant(0).Add(5*time.Second))
	fmt.Printf("filled to %v, full: %v\n", level, full)
	// Output:
	//   0s: cost 2 at level 0: true
	//   0s: cost 2 at level 2: false
	//   1s: cost 2 at level 0.5: true
	//   4s: cost 3 at level 0: true
	// filled to 3, full: true
}

// A login is charged to the client and to the account at once: both must fit, and if one does
// not, neither is poured.
func ExampleStore() {
	var store leakybucket.Store = memstore.New(memstore.Options{})
	login := func(client, account string) {
		charges := []leakybucket.Charge{
			{Zone: "clients", Key: client, Limit: leakybucket.Limit{Capacity: 10, Leak: 10. / 3600}, Cost: 1},
			{Zone: "accounts", Key: account, Limit: leakybucket.Limit{Capacity: 2, Leak: 2. / 3600}, Cost: 1},
		}
		decisions := make([]leakybucket.Decision, len(charges))
		if err := store.Take(context.Background(), charges, decisions); err != nil {
			fmt.Println(err)
			return
		}
		for i := range charges {
			if d := &decisions[i]; !d.Fits {
				fmt.Printf("%s as %s: too many for %s, come back in %v\n", client, account, charges[i].Zone, charges[i].RetryAfter(d).Round(time.Minute))
				return
			}
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
	// 203.0.113.7 as alice: too many for accounts, come back in 30m0s
	// 203.0.113.7 as bob: welcome
}

// Up to three requests wait for their turn, each a tenth of a second after the one before.
func ExampleCharge() {
	limit := leakybucket.Limit{Capacity: 10, Leak: 10}
	charge := leakybucket.Charge{Limit: limit, Cost: 1, Ceiling: limit.Ceiling(1, 0, 300*time.Millisecond)}
	var state leakybucket.State
	for range 5 {
		var d leakybucket.Decision
		if charge.Take(&state, 0, &d); d.Poured {
			fmt.Println("waits", charge.Delay(&d))
		} else {
			fmt.Println("refused")
		}
	}
	// Output:
	// waits 0s
	// waits 100ms
	// waits 200ms
	// waits 300ms
	// refused
}

// A limit that is tried in shadow refuses nobody. Its decisions tell what it would do.
func ExampleDecision() {
	store := memstore.New(memstore.Options{})
	charges := []leakybucket.Charge{
		{Zone: "site", Key: "203.0.113.7", Limit: leakybucket.Limit{Capacity: 10, Leak: 1}, Cost: 1},
		{Zone: "stricter", Key: "203.0.113.7", Limit: leakybucket.Limit{Capacity: 1, Leak: 0.01}, Cost: 1, Shadow: true},
	}
	for range 2 {
		d := make([]leakybucket.Decision, len(charges))
		_ = store.Take(context.Background(), charges, d) // never fails in memory
		fmt.Printf("admitted: %v, and by the stricter limit: %v\n", d[0].Poured, d[1].Fits)
	}
	// Output:
	// admitted: true, and by the stricter limit: true
	// admitted: true, and by the stricter limit: false
}

func ExampleInstant() {
	at := leakybucket.Instant(1_000_000).Add(1500 * time.Millisecond)
	fmt.Println(int64(at), at.Sub(1_000_000))
	// Output: 2500000 1.5s
}

// An overflow blocks the bucket for a minute. Another one soon afterwards blocks it for an hour.
func ExampleLadder() {
	charge := leakybucket.Charge{
		Limit: leakybucket.Limit{Capacity: 1, Leak: 1}, Cost: 1,
		Block: &leakybucket.Ladder{Steps: []time.Duration{time.Minute, time.Hour}},
	}
	var state leakybucket.State
	now := leakybucket.Instant(0)
	for range 6 {
		var d leakybucket.Decision
		charge.Take(&state, now, &d)
		if wait := charge.RetryAfter(&d); wait > 0 {
			fmt.Println("refused for", wait)
			now = now.Add(wait)
		}
	}
	// Output:
	// refused for 1m0s
	// refused for 1h0m0s
	// refused for 1h0m0s
}

// A request is charged a unit before its true cost is known, and settled afterwards.
func ExampleSettlement() {
	store := memstore.New(memstore.Options{})
	charges := []leakybucket.Charge{{Key: "203.0.113.7", Limit: leakybucket.Limit{Capacity: 10, Leak: 1e-6}, Cost: 1, Debt: 10}}
	decisions := make([]leakybucket.Decision, 1)
	for _, cost := range []float64{4, 12} {
		if err := store.Take(context.Background(), charges, decisions); err != nil {
			fmt.Println(err)
			return
		}
		settlement := leakybucket.Settlement{Charge: charges[0], Was: decisions[0], Diff: cost - charges[0].Cost}
		if err := store.Settle(context.Background(), []leakybucket.Settlement{settlement}); err != nil {
			fmt.Println(err)
		}
		fmt.Printf("found %.0f, and cost %v\n", decisions[0].Level, cost)
	}
	_ = store.Take(context.Background(), charges, decisions)
	fmt.Printf("found %.0f, fits: %v\n", decisions[0].Level, decisions[0].Fits)
	// Output:
	// found 0, and cost 4
	// found 4, and cost 12
	// found 16, fits: false
}
