package leakybucket_test

import (
	"context"
	"errors"
	"math"
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

func TestWaitGivesItsPlaceBackIfNobodyCameAfter(t *testing.T) {
	for _, test := range []struct {
		about string
		after bool
		want  float64 // level once the leaver has left
	}{
		{"nobody came after", false, 9},
		{"somebody did", true, 15},
	} {
		synctest.Test(t, func(t *testing.T) {
			bucket := newBucket(t, 10, 1)
			bucket.Take(10)
			ctx, leave := context.WithCancel(t.Context())
			left := make(chan error)
			go func() { left <- bucket.Wait(ctx, 4) }()
			synctest.Wait()
			if test.after {
				go bucket.Wait(t.Context(), 2) // it only stands in the row
				synctest.Wait()
			}
			time.Sleep(time.Second) // virtual
			leave()
			if err := <-left; !errors.Is(err, context.Canceled) {
				t.Errorf("%s: got %v, want %v", test.about, err, context.Canceled)
			}
			if got := bucket.Level(); math.Abs(got-test.want) > 1e-9 {
				t.Errorf("%s: got a level of %v, want %v", test.about, got, test.want)
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
