package leakybucket_test

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

// The functions of a limit know no clock. This follows a bucket that holds 3
// and leaks 1.5 a second.
func ExampleLimit_Take() {
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
	// Output:
	//   0s: cost 2 at level 0: true
	//   0s: cost 2 at level 2: false
	//   1s: cost 2 at level 0.5: true
	//   4s: cost 3 at level 0: true
}

// Fill does not ask: what came in came in. The result says when it was as much
// as the bucket holds.
func ExampleLimit_Fill() {
	limit := leakybucket.Limit{Capacity: 3, Leak: 1.5}
	var state leakybucket.State
	for _, step := range []struct {
		after time.Duration
		cost  float64
	}{{0, 1}, {700 * time.Millisecond, 2}, {time.Second, 1}, {1300 * time.Millisecond, 2}} {
		var level float64
		var full bool
		state, level, full = limit.Fill(state, step.cost, leakybucket.Instant(0).Add(step.after))
		fmt.Printf("%5v: %.2f, full: %v\n", step.after, level, full)
	}
	// Output:
	//    0s: 1.00, full: false
	// 700ms: 2.00, full: false
	//    1s: 2.55, full: false
	//  1.3s: 3.00, full: true
}

func ExampleLimit_TimeToFit() {
	limit := leakybucket.Limit{Capacity: 10, Leak: 2}
	full := limit.Capacity
	fmt.Println("a cost of 1 fits in", limit.TimeToFit(full, 1))
	fmt.Println("a cost of 6 fits in", limit.TimeToFit(full, 6))
	fmt.Println("it is empty in", limit.TimeToEmpty(full))
	fmt.Println("a cost of 11 never fits:", limit.Oversize(11))
	// Output:
	// a cost of 1 fits in 500ms
	// a cost of 6 fits in 3s
	// it is empty in 5s
	// a cost of 11 never fits: true
}

func ExampleParseLimit() {
	for _, text := range []string{"10 1/s", "100, 30/m", "10 per second"} {
		limit, err := leakybucket.ParseLimit(text)
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Printf("holds %v, leaks %v a second\n", limit.Capacity, limit.Leak)
	}
	// Output:
	// holds 10, leaks 1 a second
	// holds 100, leaks 0.5 a second
	// invalid limit "10 per second": want <capacity> <leak>, such as 10 1/s
}
