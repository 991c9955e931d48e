package memstore_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
)

func newLimiter(t *testing.T, capacity, leak float64) *memstore.Limiter {
	t.Helper()
	limiter, err := memstore.NewLimiter(leakybucket.Limit{Capacity: capacity, Leak: leak}, memstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return limiter
}

func TestALimiterSaysWhatRemainsAndWhenToComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := newLimiter(t, 10, 2)
		for i, test := range []struct {
			key  string
			cost float64
			rest time.Duration // before
			want memstore.Result
		}{
			{"a", 4, 0, memstore.Result{Fits: true, Remaining: 6}},
			{"b", 10, 0, memstore.Result{Fits: true}},
			{"a", 7, 0, memstore.Result{Remaining: 6, RetryAfter: 500 * time.Millisecond}},
			{"a", 7, 500 * time.Millisecond, memstore.Result{Fits: true}},
			{"a", 11, 0, memstore.Result{}}, // never fits
			{"a", math.NaN(), 0, memstore.Result{}},
			{"b", 0, 0, memstore.Result{Fits: true, Remaining: 1}},
			{strings.Repeat("x", 1<<16), 1, 0, memstore.Result{Remaining: 10}},
		} {
			time.Sleep(test.rest) // virtual
			if got := limiter.Take(test.key, test.cost); got != test.want {
				t.Errorf("take %d, cost %v: got %+v, want %+v", i, test.cost, got, test.want)
			}
		}
		limiter.Reset("a")
		if a, b := limiter.Level("a"), limiter.Level("b"); a != 0 || b != 9 {
			t.Errorf("levels after a reset: got %v and %v, want 0 and 9", a, b)
		}
		if got := limiter.Store().Buckets()[""]; got != 1 {
			t.Errorf("buckets: got %d, want 1", got)
		}
	})
	if _, err := memstore.NewLimiter(leakybucket.Limit{}, memstore.Options{}); err == nil {
		t.Error("a limiter without a limit: got no error")
	}
}

func TestALimiterServesThoseWhoWaitInOrderAndByKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := newLimiter(t, 2, 1)
		start := time.Now()
		waited := make([]time.Duration, 12)
		var waiters sync.WaitGroup
		for i := range waited {
			waiters.Go(func() {
				if err := limiter.Wait(t.Context(), fmt.Sprint("k", i%2), 1); err != nil {
					t.Errorf("waiter %d: %v", i, err)
				}
				waited[i] = time.Since(start)
			})
			synctest.Wait() // the next comes when this one stands in line
		}
		if got := limiter.Take("k0", 0); got.Fits || got.RetryAfter < 4*time.Second {
			t.Errorf("take while others wait: got %+v, want it refused for as long as they all take", got)
		}
		if got := limiter.Take("k2", 1); !got.Fits {
			t.Errorf("take of a key for which nobody waits: got %+v, want it to fit", got)
		}
		if got := limiter.Level("k1"); got != 6 {
			t.Errorf("level with four waiting: got %v, want 6", got)
		}
		waiters.Wait()
		for i, got := range waited {
			if want := time.Duration(max(0, i/2-1)) * time.Second; got != want {
				t.Errorf("waiter %d: got %v, want %v", i, got, want)
			}
		}
		if got := limiter.Take("k0", 0.5); got.Fits {
			t.Errorf("take of a full bucket: got %+v, want it refused", got)
		}
	})
}

func TestALimiterForgetsThoseWhoLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := newLimiter(t, 1, 1)
		limiter.Take("k", 1)
		var waiters sync.WaitGroup
		ctx, leave := context.WithCancel(t.Context())
		for range 100 {
			waiters.Go(func() {
				if err := limiter.Wait(ctx, "k", 1); !errors.Is(err, context.Canceled) {
					t.Errorf("a waiter that left: got %v, want %v", err, context.Canceled)
				}
			})
		}
		synctest.Wait()
		leave()
		waiters.Wait()
		if got := limiter.Level("k"); got != 1 {
			t.Errorf("level when all have left: got %v, want 1", got)
		}
		start := time.Now()
		if err := limiter.Wait(t.Context(), "k", 1); err != nil || time.Since(start) != time.Second {
			t.Errorf("the next one: got %v after %v, want it served after 1s", err, time.Since(start))
		}
	})
}

func TestALimiterRefusesToWaitForWhatIsHopeless(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := newLimiter(t, 10, 1)
		limiter.Take("k", 10)
		ctx, cancel := context.WithTimeout(t.Context(), 2500*time.Millisecond)
		defer cancel()
		start := time.Now()
		if err := limiter.Wait(ctx, "k", 3); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a wait over the deadline: got %v, want %v", err, context.DeadlineExceeded)
		}
		for _, cost := range []float64{11, -1, math.NaN(), math.Inf(1)} {
			if err := limiter.Wait(ctx, "k", cost); err == nil {
				t.Errorf("a cost of %v: got no error", cost)
			}
		}
		if err := limiter.Wait(ctx, strings.Repeat("x", 1<<16), 1); err == nil {
			t.Error("too long a key: got no error")
		}
		if waited := time.Since(start); waited != 0 {
			t.Errorf("refusing took %v, want no time", waited)
		}
		if err := limiter.Wait(ctx, "k", 2); err != nil {
			t.Errorf("a wait within the deadline: got %v", err)
		}
		cancel()
		if err := limiter.Wait(ctx, "other", 1); !errors.Is(err, context.Canceled) {
			t.Errorf("a wait with a context that has ended: got %v, want %v", err, context.Canceled)
		}
	})
}

func TestALimiterTakesWithoutAllocating(t *testing.T) {
	limiter := newLimiter(t, 1e8, 1)
	if got := testing.AllocsPerRun(1000, func() { limiter.Take("k", 1) }); got > 0 {
		t.Errorf("allocations of a take: got %v, want none", got)
	}
}
