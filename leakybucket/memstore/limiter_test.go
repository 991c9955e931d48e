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

// A limiter has a store of its own, which never fails.
type limiter struct{ *leakybucket.Limiter }

func newLimiter(t *testing.T, capacity, leak float64) limiter {
	t.Helper()
	l, err := leakybucket.NewLimiter(memstore.New(memstore.Options{}), leakybucket.Limit{Capacity: capacity, Leak: leak}, leakybucket.LimiterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return limiter{l}
}

func (l limiter) Take(key string, cost float64) leakybucket.Result {
	r, err := l.Limiter.Take(context.Background(), key, cost)
	if err != nil {
		panic(err)
	}
	return r
}

func TestALimiterSaysWhatRemainsAndWhenToComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := newLimiter(t, 10, 2)
		for i, test := range []struct {
			key        string
			cost       float64
			rest       time.Duration // before
			fits       bool
			remaining  float64
			retryAfter time.Duration
		}{
			{"a", 4, 0, true, 6, 0},
			{"b", 10, 0, true, 0, 0},
			{"a", 7, 0, false, 6, 500 * time.Millisecond},
			{"a", 7, 500 * time.Millisecond, true, 0, 0},
			{"a", 11, 0, false, 0, 0}, // never fits
			{"a", math.NaN(), 0, false, 0, 0},
			{"b", 0, 0, true, 1, 0},
		} {
			time.Sleep(test.rest) // virtual
			got := limiter.Take(test.key, test.cost)
			if got.Fits != test.fits || got.Remaining != test.remaining || got.RetryAfter != test.retryAfter {
				t.Errorf("take %d, cost %v: got %+v, want %+v", i, test.cost, got, test)
			}
		}
		if err := limiter.Reset(t.Context(), "a"); err != nil {
			t.Error(err)
		}
		if a, b := limiter.Take("a", 0).Level, limiter.Take("b", 0).Level; a != 0 || b != 9 {
			t.Errorf("levels after a reset: got %v and %v, want 0 and 9", a, b)
		}
	})
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
		if got := limiter.Take("k1", 0).Level; got != 6 {
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

func TestALimiterForgetsTheLastWhoLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := newLimiter(t, 1, 1)
		limiter.Take("k", 1)
		leaving := func(after time.Duration) {
			ctx, leave := context.WithCancel(t.Context())
			time.AfterFunc(after, leave)
			if err := limiter.Wait(ctx, "k", 1); !errors.Is(err, context.Canceled) {
				t.Errorf("a waiter that left: got %v, want %v", err, context.Canceled)
			}
		}
		leaving(500 * time.Millisecond)
		if got := limiter.Take("k", 0).Level; got != 0.5 {
			t.Errorf("level when the last has left: got %v, want 0.5, as if it had never come", got)
		}
		var first sync.WaitGroup
		first.Go(func() { leaving(100 * time.Millisecond) })
		synctest.Wait()
		start := time.Now()
		if err := limiter.Wait(t.Context(), "k", 1); err != nil || time.Since(start) != 1500*time.Millisecond {
			t.Errorf("one behind another that leaves: got %v after %v, want it served when it was told", err, time.Since(start))
		}
		first.Wait()
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
