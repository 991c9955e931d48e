package coalesce

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// A server takes a second for each batch and remembers what it was sent.
type server struct {
	mu       sync.Mutex
	batches  [][]int
	inFlight int
	most     int // batches that were in flight at once
}

func (s *server) send(_ string, batch []int) {
	s.mu.Lock()
	s.batches = append(s.batches, slices.Clone(batch))
	s.inFlight++
	s.most = max(s.most, s.inFlight)
	s.mu.Unlock()
	<-time.After(time.Second)
	s.mu.Lock()
	s.inFlight--
	s.mu.Unlock()
}

// do sends calls in the order given, each from a goroutine of its own, and
// returns once all of them wait or fly.
func do(ctx context.Context, wg *sync.WaitGroup, l *Lanes[string, int], weight int, calls ...int) {
	for _, c := range calls {
		wg.Go(func() { _ = l.Do(ctx, "lane", c, weight) })
		synctest.Wait()
	}
}

func TestCallsShareBatches(t *testing.T) {
	for _, test := range []struct {
		name    string
		options Options
		calls   int
		want    [][]int
	}{
		{"one is sent at once", Options{MaxWeight: 10}, 1, [][]int{{0}}},
		{"the next batch leaves when the first returns", Options{MaxWeight: 10}, 4, [][]int{{0}, {1, 2, 3}}},
		{"a batch is bounded", Options{MaxWeight: 2}, 6, [][]int{{0}, {1, 2}, {3, 4}, {5}}},
		{"a second leaves beside it with enough", Options{MaxWeight: 4, MaxInFlight: 2, SecondWeight: 2}, 4, [][]int{{0}, {1, 2}, {3}}},
		{"others leave when full", Options{MaxWeight: 3, MaxInFlight: 4, SecondWeight: 2}, 7, [][]int{{0}, {1, 2}, {3, 4, 5}, {6}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var s server
				l := New(test.options, s.send)
				var wg sync.WaitGroup
				for i := range test.calls {
					do(t.Context(), &wg, l, 1, i)
				}
				wg.Wait()
				l.Close()
				check.That(t, slices.EqualFunc(s.batches, test.want, slices.Equal), "batches: got %v, want %v", s.batches, test.want)
				most := max(1, test.options.MaxInFlight)
				check.That(t, s.most <= most, "batches in flight: got %d, want at most %d", s.most, most)
				check.Equal(t, len(l.lanes), 0, "lanes kept after the last call")
			})
		})
	}
}

func TestACallHeavierThanABatchIsSentAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s server
		l := New(Options{MaxWeight: 10}, s.send)
		var wg sync.WaitGroup
		do(t.Context(), &wg, l, 1, 0, 1)
		do(t.Context(), &wg, l, 50, 2)
		do(t.Context(), &wg, l, 1, 3)
		wg.Wait()
		check.Equal(t, fmt.Sprint(s.batches), "[[0] [1] [2] [3]]", "batches")
	})
}

func TestKeysDoNotShareALane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s server
		l := New(Options{MaxWeight: 10}, s.send)
		var wg sync.WaitGroup
		for i := range 5 {
			wg.Go(func() { _ = l.Do(t.Context(), fmt.Sprint(i), i, 1) })
		}
		began := time.Now()
		wg.Wait()
		took := time.Since(began)
		check.That(t, took == time.Second && s.most == 5, "calls of five keys: got %v with %d in flight at once, want 1s and 5", took, s.most)
	})
}

func TestACallNotYetSentIsDroppedWhenItsContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s server
		l := New(Options{MaxWeight: 10}, s.send)
		var wg sync.WaitGroup
		do(t.Context(), &wg, l, 1, 0)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		began := time.Now()
		for i := range 100 {
			wg.Go(func() {
				check.Is(t, l.Do(ctx, "lane", 1+i, 1), context.DeadlineExceeded, "call %d, want its deadline exceeded", i)
				check.Equal(t, time.Since(began), 50*time.Millisecond, "call %d: the time until its error", i)
			})
		}
		synctest.Wait()
		<-time.After(100 * time.Millisecond)
		l.mu.Lock()
		waiting := l.lanes["lane"].waiting.Len()
		l.mu.Unlock()
		check.That(t, waiting <= 1, "calls kept after all have left: got %d, want at most one", waiting)
		do(t.Context(), &wg, l, 1, 1000)
		wg.Wait()
		check.Equal(t, fmt.Sprint(s.batches), "[[0] [1000]]", "batches")
	})
}

func TestACallInFlightIsWaitedForOnlyUntilItsContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s server
		l := New(Options{MaxWeight: 10}, s.send)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		began := time.Now()
		err := l.Do(ctx, "lane", 0, 1)
		took := time.Since(began)
		check.That(t, errors.Is(err, context.DeadlineExceeded) && took == 50*time.Millisecond, "call: got %v after %v, want its deadline exceeded after 50ms", err, took)
		l.Close()
	})
}

func TestACallWhoseContextHasEndedIsNotSent(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	l := New(Options{MaxWeight: 10}, func(string, []int) { t.Error("got it sent") })
	check.Is(t, l.Do(ctx, "lane", 0, 1), context.Canceled, "want it cancelled")
}

func TestCloseFinishesWhatFliesAndTurnsAwayWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s server
		l := New(Options{MaxWeight: 10}, s.send)
		var errs [3]error
		var wg sync.WaitGroup
		for i := range 2 {
			wg.Go(func() { errs[i] = l.Do(t.Context(), "lane", i, 1) })
			synctest.Wait()
		}
		l.Close()
		errs[2] = l.Do(t.Context(), "lane", 2, 1)
		wg.Wait()
		check.That(t, errs[0] == nil && errs[1] == ErrClosed && errs[2] == ErrClosed, "in flight, waiting, later: got %v, want nil, closed, closed", errs)
		l.Close()
	})
}

// Each call is executed exactly once, whatever is dropped beside it.
func TestCallsAreSentOnceEach(t *testing.T) {
	var sent [2000]atomic.Int32
	l := New(Options{MaxWeight: 16, MaxInFlight: 4, SecondWeight: 8}, func(_ int, batch []int) {
		for _, i := range batch {
			sent[i].Add(1)
		}
	})
	var wg sync.WaitGroup
	for i := range sent {
		wg.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			if i%7 == 0 {
				go cancel()
			}
			defer cancel()
			err := l.Do(ctx, i%3, i, 1+i%5)
			if n := sent[i].Load(); err == nil && n != 1 {
				t.Errorf("call %d: got it sent %d times, want once", i, n)
			}
		})
	}
	wg.Wait()
	l.Close()
	for i := range sent {
		n := sent[i].Load()
		check.That(t, n <= 1, "call %d: got it sent %d times, want at most once", i, n)
	}
}
