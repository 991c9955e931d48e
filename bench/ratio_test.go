package bench

import (
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// turns returns a function that makes so many takes on each of some threads, and returns how
// many nanoseconds one took in the best part of the turn. A part is so short that little
// interferes, and the first parts refill the caches after the other's turn. Each call
// continues with the next keys.
func turns(t *testing.T, s store, order *keys, want bool, takes, threads int) func() float64 {
	const part = 10_000
	next := make([]int, threads)
	for i := range next {
		next[i] = i * order.len() / threads
	}
	return func() float64 {
		best := time.Duration(math.MaxInt64)
		for range takes / part {
			best = min(best, atOnce(threads, func(thread int) {
				take, at := s.taker(), &next[thread]
				for range part {
					if take(order.at(*at)) != want {
						t.Errorf("take: got allowed %v, want %v", !want, want)
					}
					if *at++; *at == order.len() {
						*at = 0
					}
				}
			}))
		}
		if best == math.MaxInt64 {
			return math.Inf(1) // the machine is too busy
		}
		return float64(best) / float64(part*threads)
	}
}

// atOnce returns how long a function takes that several threads run at the same time. If one
// of them was interrupted, the others have run alone, and it took forever.
func atOnce(threads int, run func(thread int)) time.Duration {
	var ready, interrupted atomic.Int64
	var done sync.WaitGroup
	began, ended := make([]time.Time, threads), make([]time.Time, threads)
	for i := range threads {
		done.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			for ready.Add(1); ready.Load() < int64(threads); {
			}
			before := interruptions()
			began[i] = time.Now()
			run(i)
			ended[i] = time.Now()
			interrupted.Add(interruptions() - before)
		})
	}
	done.Wait()
	first, last := slices.MinFunc(began, time.Time.Compare), slices.MaxFunc(ended, time.Time.Compare)
	late := slices.MaxFunc(began, time.Time.Compare).Sub(first)
	if threads > 1 && (interrupted.Load() > 0 || late > 5*time.Microsecond) {
		return math.MaxInt64
	}
	return last.Sub(first)
}

// interruptions returns how often the processor was taken away from this thread.
func interruptions() int64 {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_THREAD, &u)
	return u.Nivcsw
}

func skipShort(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("SKIPPED: measures; run without -short")
	}
}
