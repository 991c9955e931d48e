package leakybucket_test

import (
	"context"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

func newBucket(tb testing.TB, capacity, leak float64) *leakybucket.Bucket {
	tb.Helper()
	bucket := check.Must(leakybucket.NewBucket(leakybucket.Limit{Capacity: capacity, Leak: leak}))(tb)
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
				check.NoError(t, bucket.Wait(t.Context(), 1), "waiter %d", i)
				waited[i] = time.Since(start)
			})
			synctest.Wait() // the next comes when this one stands in the row
		}
		waiters.Wait()
		for i, got := range waited {
			want := max(0, time.Duration(i-4)*100*time.Millisecond)
			check.Equal(t, got, want, "waiter %d", i)
		}
	})
}

// wait starts a call of Wait, and returns when it ended with an error that is wanted, and a
// function that makes it leave.
func wait(t *testing.T, bucket *leakybucket.Bucket, cost float64, want error) (ended chan time.Time, leave func()) {
	ctx, leave := context.WithCancel(t.Context())
	ended = make(chan time.Time, 1)
	go func() {
		check.Is(t, bucket.Wait(ctx, cost), want, "waiting for %v", cost)
		ended <- time.Now()
	}()
	synctest.Wait() // its place is taken
	return ended, leave
}

func TestTheLastWhoLeavesGivesItsCostBackAndOthersKeepTheirTime(t *testing.T) {
	for leaver, level := range []float64{18, 18, 15} { // of three that wait for 4, 2 and 3
		synctest.Test(t, func(t *testing.T) {
			bucket := newBucket(t, 10, 1)
			bucket.Take(10)
			start := time.Now()
			var all []chan time.Time
			var leave func()
			for i, cost := range []float64{4, 2, 3} {
				var want error
				if i == leaver {
					want = context.Canceled
				}
				ended, leaves := wait(t, bucket, cost, want)
				if all = append(all, ended); i == leaver {
					leave = leaves
				}
			}
			time.Sleep(time.Second) // virtual
			leave()
			synctest.Wait()
			check.Equal(t, bucket.Level(), level, "%d leaves: a level", leaver)
			for i, ended := range all {
				want := []time.Duration{4 * time.Second, 6 * time.Second, 9 * time.Second}[i]
				if i == leaver {
					want = time.Second
				}
				check.Equal(t, (<-ended).Sub(start), want, "%d leaves: when %d is served", leaver, i)
			}
		})
	}
}

// What comes after a caller of Wait moves the level, and not the time it was told.
func TestThoseWhoWaitAreServedWhenTheyWereTold(t *testing.T) {
	for about, change := range map[string]func(*leakybucket.Bucket, leakybucket.Result){
		"filled":       func(b *leakybucket.Bucket, _ leakybucket.Result) { b.Fill(5) },
		"taken out":    func(b *leakybucket.Bucket, _ leakybucket.Result) { b.Fill(-2) },
		"settled down": func(b *leakybucket.Bucket, was leakybucket.Result) { b.Settle(was, 7) },
		"settled up":   func(b *leakybucket.Bucket, was leakybucket.Result) { b.Settle(was, 13) },
	} {
		synctest.Test(t, func(t *testing.T) {
			bucket := newBucket(t, 10, 1)
			was := bucket.Take(10)
			start := time.Now()
			ended, _ := wait(t, bucket, 4, nil)
			change(bucket, was)
			check.That(t, !bucket.Fits(0) && !bucket.Take(0).Fits, "%s: got a cost of 0 to fit before one that waits", about)
			check.Equal(t, (<-ended).Sub(start), 4*time.Second, "%s: the time until it is served", about)
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
		check.Is(t, bucket.Wait(ctx, 3), context.DeadlineExceeded, "a wait over the deadline")
		for _, cost := range []float64{11, -1, math.NaN(), math.Inf(1)} {
			check.That(t, bucket.Wait(t.Context(), cost) != nil, "a cost of %v: got no error", cost)
		}
		check.Equal(t, time.Since(start), 0, "how long refusing took")
		check.Equal(t, bucket.Level(), 10, "after refusals: a level")
		check.NoError(t, bucket.Wait(ctx, 2), "a wait within the deadline")
	})
}

// TestAClockThatWasSetBackHoldsUpWaitersNoLongerThanTakes: until it has caught up nothing leaks, and
// so each would wait longer than the one before.
func TestAClockThatWasSetBackHoldsUpWaitersNoLongerThanTakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		back := time.Duration(0)
		s := memstore.New(memstore.Options{Clock: func() leakybucket.Instant { return leakybucket.Instant(time.Now().Add(-back).UnixMicro()) }})
		l := newLimiter(t, s, 1, 5, leakybucket.LimiterOptions{})
		check.OK(t, l.Wait(t.Context(), "k", 1))
		back = time.Hour
		for i := range 5 {
			start := time.Now()
			check.OK(t, l.Wait(t.Context(), "k", 1))
			check.Equal(t, time.Since(start), time.Second/5, "waiter %d", i)
		}
	})
}
