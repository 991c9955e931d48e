package leakybucket_test

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

func newBucket(tb testing.TB, capacity, leak float64) *leakybucket.Bucket {
	tb.Helper()
	bucket, err := leakybucket.NewBucket(leakybucket.Limit{Capacity: capacity, Leak: leak})
	if err != nil {
		tb.Fatal(err)
	}
	return bucket
}

func TestWaitServesInOrderAndNoSoonerThanTheLeakAllows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := newBucket(t, 5, 10)
		start := time.Now()
		waited := make([]time.Duration, 8)
		var waiters sync.WaitGroup
		for i := range waited {
			waiters.Go(func() {
				if err := bucket.Wait(t.Context(), 1); err != nil {
					t.Errorf("waiter %d: %v", i, err)
				}
				waited[i] = time.Since(start)
			})
			synctest.Wait() // the next comes when this one stands in the row
		}
		waiters.Wait()
		for i, got := range waited {
			want := max(0, time.Duration(i-4)*100*time.Millisecond)
			if got != want {
				t.Errorf("waiter %d: got %v, want %v", i, got, want)
			}
		}
	})
}

func TestWaitHoldsItsPlaceAgainstTakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := newBucket(t, 10, 1)
		bucket.Take(8)
		done := make(chan time.Time, 1)
		start := time.Now()
		go func() {
			if err := bucket.Wait(t.Context(), 5); err == nil {
				done <- time.Now()
			}
		}()
		synctest.Wait()
		if d := bucket.Take(1); d.Fits {
			t.Error("a small take got in before a large one that was first")
		}
		if got, want := (<-done).Sub(start), 3*time.Second; got != want {
			t.Errorf("the wait took %v, want %v", got, want)
		}
	})
}

// waits starts a call of Wait and returns how it ended and when, and a function
// that makes it leave.
func waits(t *testing.T, bucket *leakybucket.Bucket, cost float64) (ended chan time.Time, err *error, leave func()) {
	ctx, leave := context.WithCancel(t.Context())
	ended, err = make(chan time.Time, 1), new(error)
	go func() {
		*err = bucket.Wait(ctx, cost)
		ended <- time.Now()
	}()
	synctest.Wait() // it stands in the queue
	return ended, err, leave
}

func TestAWaiterThatLeavesGivesBackItsCostAndThoseBehindMoveUp(t *testing.T) {
	for _, test := range []struct {
		about  string
		leaver int             // of three that wait for 4, 2 and 3
		served []time.Duration // the others
		level  float64         // once it has left
	}{
		{"the first", 0, []time.Duration{2 * time.Second, 5 * time.Second}, 14},
		{"the second", 1, []time.Duration{4 * time.Second, 7 * time.Second}, 16},
		{"the last", 2, []time.Duration{4 * time.Second, 6 * time.Second}, 15},
	} {
		synctest.Test(t, func(t *testing.T) {
			bucket := newBucket(t, 10, 1)
			bucket.Take(10)
			start := time.Now()
			var others []chan time.Time
			var left chan time.Time
			var err *error
			var leave func()
			for i, cost := range []float64{4, 2, 3} {
				if i == test.leaver {
					left, err, leave = waits(t, bucket, cost)
				} else {
					ended, _, _ := waits(t, bucket, cost)
					others = append(others, ended)
				}
			}
			time.Sleep(time.Second) // virtual
			leave()
			if at := <-left; !errors.Is(*err, context.Canceled) || at.Sub(start) != time.Second {
				t.Errorf("%s leaves: got %v after %v, want %v at once", test.about, *err, at.Sub(start), context.Canceled)
			}
			if got := bucket.Level(); math.Abs(got-test.level) > 1e-9 {
				t.Errorf("%s leaves: got a level of %v, want %v", test.about, got, test.level)
			}
			for i, ended := range others {
				if got := (<-ended).Sub(start); got != test.served[i] {
					t.Errorf("%s leaves: got the %d. of the others served after %v, want %v", test.about, i+1, got, test.served[i])
				}
			}
		})
	}
}

func TestAHundredWaitersThatLeaveLeaveNothingBehind(t *testing.T) {
	orders := map[string]func(rng *rand.Rand) []int{
		"first first": func(*rand.Rand) []int { return upTo(100) },
		"last first": func(*rand.Rand) []int {
			order := upTo(100)
			slices.Reverse(order)
			return order
		},
		"in any order": func(rng *rand.Rand) []int { return rng.Perm(100) },
	}
	for about, order := range orders {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(5, 0))
			bucket := newBucket(t, 1, 1)
			bucket.Take(1)
			var ends []chan time.Time
			var leaves []func()
			for range 100 {
				ended, _, leave := waits(t, bucket, rng.Float64())
				ends, leaves = append(ends, ended), append(leaves, leave)
			}
			for _, i := range order(rng) {
				leaves[i]()
				<-ends[i]
			}
			if got := bucket.Level(); got != 1 {
				t.Errorf("%s: got a level of %v when all have left, want 1 as before", about, got)
			}
			start := time.Now()
			if err := bucket.Wait(t.Context(), 1); err != nil || time.Since(start) != time.Second {
				t.Errorf("%s: got the next one served after %v (%v), want 1s", about, time.Since(start), err)
			}
		})
	}
}

func upTo(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// While clients wait, fills and settlements move their turns, and nobody gets in
// before them.
func TestSettlingAndFillingMoveThoseWhoWait(t *testing.T) {
	for _, test := range []struct {
		about  string
		change func(bucket *leakybucket.Bucket, was leakybucket.Decision)
		served time.Duration
	}{
		{"nothing", func(*leakybucket.Bucket, leakybucket.Decision) {}, 4 * time.Second},
		{"filled by nothing", func(b *leakybucket.Bucket, _ leakybucket.Decision) { b.Fill(0) }, 4 * time.Second},
		{"filled", func(b *leakybucket.Bucket, _ leakybucket.Decision) { b.Fill(5) }, 4 * time.Second},
		{"taken out", func(b *leakybucket.Bucket, _ leakybucket.Decision) { b.Fill(-2) }, 2 * time.Second},
		{"taken out entirely", func(b *leakybucket.Bucket, _ leakybucket.Decision) { b.Fill(-20) }, 0},
		{"settled down", func(b *leakybucket.Bucket, was leakybucket.Decision) { b.Settle(was, 10, -3) }, time.Second},
		{"settled up", func(b *leakybucket.Bucket, was leakybucket.Decision) { b.Settle(was, 10, 3) }, 7 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			bucket := newBucket(t, 10, 1)
			was := bucket.Take(10)
			start := time.Now()
			ended, _, _ := waits(t, bucket, 4)
			test.change(bucket, was)
			if waits := test.served > 0; bucket.Fits(0) == waits || bucket.Take(0).Fits == waits {
				t.Errorf("%s: got a cost of 0 to fit: %v, want %v", test.about, waits, !waits)
			}
			if got := (<-ended).Sub(start); got != test.served {
				t.Errorf("%s: got it served after %v, want %v", test.about, got, test.served)
			}
		})
	}
}

func TestWaitRefusesWhatIsHopeless(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := newBucket(t, 10, 1)
		bucket.Take(10)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		start := time.Now()
		if err := bucket.Wait(ctx, 3); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a wait over the deadline: got %v, want %v", err, context.DeadlineExceeded)
		}
		for _, cost := range []float64{11, -1, math.NaN(), math.Inf(1)} {
			if err := bucket.Wait(t.Context(), cost); err == nil {
				t.Errorf("a cost of %v: got no error", cost)
			}
		}
		if waited := time.Since(start); waited != 0 {
			t.Errorf("refusing took %v, want no time", waited)
		}
		if got := bucket.Level(); got != 10 {
			t.Errorf("got a level of %v after refusals, want 10", got)
		}
		if err := bucket.Wait(ctx, 2); err != nil {
			t.Errorf("a wait within the deadline: got %v", err)
		}
	})
}

func TestBucketSettlesUpToItsDebt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := newBucket(t, 10, 1)
		was := bucket.Take(2)
		bucket.Settle(was, 2, 30)
		if got := bucket.Level(); got != 20 {
			t.Errorf("a long job: got a level of %v, want capacity and debt, 20", got)
		}
		time.Sleep(20 * time.Second) // virtual
		was = bucket.Take(6)
		time.Sleep(2 * time.Second) // virtual
		bucket.Settle(was, 6, -100)
		if got := bucket.Level(); got != 0 {
			t.Errorf("a short job: got a level of %v, want 0", got)
		}
	})
}
