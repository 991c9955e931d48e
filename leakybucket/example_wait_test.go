package leakybucket_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// A loop that works jobs off, and sleeps when they cost more than it may spend.
func ExampleBucket_Wait() {
	bucket, err := leakybucket.NewBucket(leakybucket.Limit{Capacity: 3, Leak: 1000})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, job := range []string{"first", "second", "third", "fourth", "fifth"} {
		if err := bucket.Wait(context.Background(), 1); err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(job)
	}
	// Output:
	// first
	// second
	// third
	// fourth
	// fifth
}

// At most 1000 in 30 days: 990 are too many after 30, and 100 are not.
func ExampleBucket_Take() {
	limit, err := leakybucket.ParseLimit("1000, 33.333333/d")
	if err != nil {
		fmt.Println(err)
		return
	}
	spending, err := leakybucket.NewBucket(limit)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, amount := range []float64{30, 990, 100} {
		fmt.Println(amount, spending.Take(amount).Fits)
	}
	// Output:
	// 30 true
	// 990 false
	// 100 true
}

// Now, or within two seconds, or not at all.
func ExampleBucket_Wait_atMost() {
	bucket, err := leakybucket.NewBucket(leakybucket.Limit{Capacity: 10, Leak: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	bucket.Take(8)

	for _, cost := range []float64{2, 5} {
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
	// 2 passes
	// 5 would take too long
}
