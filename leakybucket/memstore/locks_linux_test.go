package memstore

import (
	"context"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// What is timed holds a lock from its beginning to its end, and nothing else
// does anything.
func TestNoLockIsHeldForAMillisecond(t *testing.T) {
	if os.Getenv("TEST_LONG") == "" || raceDetector {
		t.Skip("TEST_LONG is not set, or -race is")
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	s, grown := timeGrowth(t)
	report(t, "take while the store grows to a million buckets", grown)
	report(t, "take of a client among a million", timeTakes(t, s, million, 7919))
	s.SetMaxBuckets(million / 2)
	report(t, "take of a new client while the store is full", timeTakes(t, s, million, 7919))

	s, _ = timeGrowth(t)
	var dropped []time.Duration
	for i := range s.shards {
		for more := true; more; {
			dropped = append(dropped, timed(func() { more = s.shards[i].resize(1, s.now) }))
		}
	}
	report(t, "step of dropping a million buckets", dropped)

	s, _ = timeGrowth(t)
	s.epoch += 1200 * second
	var shed []time.Duration
	for i := range s.shards {
		for next, more := 0, true; more; {
			shed = append(shed, timed(func() { next, more = s.shards[i].shed(next, s.now) }))
		}
	}
	report(t, "step of sweeping a million empty buckets", shed)
	if got := buckets(s); got != 0 {
		t.Errorf("buckets after the sweep: got %d, want 0", got)
	}
}

func timed(f func()) time.Duration {
	start := cpuTime()
	f()
	return cpuTime() - start
}

// timeTakes times takes of n clients, so far from one to the next.
func timeTakes(t *testing.T, s *Store, n, stride int) []time.Duration {
	t.Helper()
	key, one := make([]byte, 0, 16), []leakybucket.Charge{charge("", 600)}
	decisions, takes := make([]leakybucket.Decision, 1), make([]time.Duration, n)
	for i := range takes {
		key = appendAddress(key[:0], i*stride%n)
		one[0].Key = string(key)
		takes[i] = timed(func() {
			if err := s.Take(context.Background(), one, decisions); err != nil {
				t.Fatalf("taking a charge: %v", err)
			}
		})
	}
	return takes
}

func timeGrowth(t *testing.T) (*Store, []time.Duration) {
	t.Helper()
	s := New(Options{MaxBuckets: million + million/8})
	takes := timeTakes(t, s, million, 1)
	if got := buckets(s); got != million {
		t.Fatalf("buckets: got %d, want %d", got, million)
	}
	return s, takes
}

func report(t *testing.T, what string, times []time.Duration) {
	t.Helper()
	slices.Sort(times)
	n := len(times)
	t.Logf("%s: median %v, p99 %v, p99.9 %v, longest %v of %d", what, times[n/2], times[n*99/100], times[n*999/1000], times[n-1], n)
	if longest := times[n-1]; longest > time.Millisecond {
		t.Errorf("%s: got %v for the longest, want at most 1 ms", what, longest)
	}
}
