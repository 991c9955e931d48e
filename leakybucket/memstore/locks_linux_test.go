package memstore

import (
	"context"
	"os"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// Each timed step holds a lock from its beginning to its end, and nobody else
// wants it. A machine that is shared takes milliseconds away now and then, so
// one good run of five is enough.
func TestNoLockIsHeldForAMillisecond(t *testing.T) {
	if os.Getenv("TEST_LONG") == "" || raceDetector {
		t.Skip("TEST_LONG is not set, or -race is")
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for _, test := range []struct {
		what string
		time func(*testing.T) []time.Duration
	}{
		{"take while the store grows to a million buckets", func(t *testing.T) []time.Duration {
			_, takes := timeGrowth(t)
			return takes
		}},
		{"take of a client among a million", func(t *testing.T) []time.Duration {
			s, _ := timeGrowth(t)
			return timeTakes(t, s, 0, 7919)
		}},
		{"take of a new client while the store is full", func(t *testing.T) []time.Duration {
			s, _ := timeGrowth(t)
			s.SetMaxBuckets(million / 2)
			return timeTakes(t, s, 0, 7919)
		}},
		{"take of a new client while a million others rest", func(t *testing.T) []time.Duration {
			s, _ := timeGrowth(t)
			s.SetMaxBuckets(2 * million)
			s.epoch += 610 * second // less than a minute after
			return timeTakes(t, s, million, 1)
		}},
		{"step of dropping a million buckets", timeDrop},
		{"step of sweeping a million empty buckets", timeSweep},
		{"step of a snapshot of a million buckets", timeCopies},
		{"step of a listing of a million buckets", timePages},
	} {
		var longest time.Duration
		for run := range 5 {
			times := test.time(t)
			slices.Sort(times)
			n := len(times)
			longest = times[n-1]
			t.Logf("%s, run %d: median %v, p99 %v, p99.9 %v, longest %v of %d",
				test.what, run+1, times[n/2], times[n*99/100], times[n*999/1000], longest, n)
			if longest <= time.Millisecond {
				break
			}
		}
		check.That(t, longest <= time.Millisecond, "%s: got %v for the longest, five times, want at most 1 ms", test.what, longest)
	}
}

func timed(f func()) time.Duration {
	start := cpuTime()
	f()
	return cpuTime() - start
}

// timeTakes times a million takes by the million clients from the first on, so far from one to the
// next. A bucket may be forgotten 600 s later.
func timeTakes(t *testing.T, s *Store, first, stride int) []time.Duration {
	t.Helper()
	key, one := make([]byte, 0, 16), []leakybucket.Charge{charge("", 600)}
	decisions, takes := make([]leakybucket.Decision, 1), make([]time.Duration, million)
	for i := range takes {
		key = appendAddress(key[:0], first+i*stride%million)
		one[0].Key = string(key)
		takes[i] = timed(func() {
			check.OK(t, s.Take(context.Background(), one, decisions), "taking a charge")
		})
	}
	return takes
}

func timeGrowth(t *testing.T) (*Store, []time.Duration) {
	t.Helper()
	s := New(Options{MaxBuckets: million})
	takes := timeTakes(t, s, 0, 1)
	check.Need(t, buckets(s), million, "buckets")
	return s, takes
}

func timeDrop(t *testing.T) (steps []time.Duration) {
	s, _ := timeGrowth(t)
	for more := true; more; {
		steps = append(steps, timed(func() { more = s.drop() }))
	}
	check.Need(t, buckets(s), 0, "buckets")
	return steps
}

func timeSweep(t *testing.T) (steps []time.Duration) {
	s, _ := timeGrowth(t)
	s.epoch += 1200 * second
	for i := range s.shards {
		for next, more := 0, true; more; {
			steps = append(steps, timed(func() { next, more = s.shards[i].shed(next, s.now) }))
		}
	}
	check.Need(t, buckets(s), 0, "buckets")
	return steps
}

func timeCopies(t *testing.T) (steps []time.Duration) {
	s, _ := timeGrowth(t)
	var copied shard
	for i := range s.shards {
		steps = append(steps, timed(func() { s.shards[i].copyTo(&copied) }))
	}
	return steps
}

func timePages(t *testing.T) (steps []time.Duration) {
	s, _ := timeGrowth(t)
	of, cursor, found := store.Filter{Zone: charge("", 600).Zone, Scan: million}, "", 0
	for more := true; more; more = cursor != "" {
		steps = append(steps, timed(func() {
			some, next, err := s.List(context.Background(), of, cursor)
			check.OK(t, err, "listing")
			found, cursor = found+len(some), next
		}))
	}
	check.Need(t, found, million, "buckets")
	return steps
}

// The bound is generous: the machine may be slow and busy.
func TestAMillionBucketsAreRestoredSoon(t *testing.T) {
	if os.Getenv("TEST_LONG") == "" || raceDetector {
		t.Skip("TEST_LONG is not set, or -race is")
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	s, _ := timeGrowth(t)
	began := cpuTime()
	saved := snapshotOf(t, s)
	wrote := cpuTime() - began
	began = cpuTime()
	to := New(Options{MaxBuckets: million})
	found, err := to.ReadSnapshot(saved, asBlocking)
	check.Assume(t, err == nil && found.Buckets == million, "reading: got %+v and error %v, want a million buckets", found, err)
	read := cpuTime() - began
	t.Logf("%d bytes a bucket, written in %v and read in %v of processor time", len(saved)/million, wrote, read)
	check.That(t, read <= 2*time.Second, "got %v to restore a million buckets, want at most 2 s", read)
}

// cpuTime returns how long this thread has run. Time that the machine gave to others
// meanwhile is not in it.
func cpuTime() time.Duration {
	const threadClock = 3 // CLOCK_THREAD_CPUTIME_ID
	var ts syscall.Timespec
	_, _, _ = syscall.Syscall(syscall.SYS_CLOCK_GETTIME, threadClock, uintptr(unsafe.Pointer(&ts)), 0)
	return time.Duration(ts.Nano())
}
