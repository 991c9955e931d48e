package caddymodule_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/snapshot"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
)

// The machine may be shared, so one good pair of slices of five is enough.
func TestWritingAMillionBucketsHardlyDelaysDecisions(t *testing.T) {
	if os.Getenv("TEST_LONG") != "1" {
		t.Skip("SKIPPED: measures for half a minute; set TEST_LONG=1")
	}
	const million = 1_000_000
	store := memstore.New(memstore.Options{MaxBuckets: million})
	charge := []leakybucket.Charge{{Zone: "pages", Limit: leakybucket.Limit{Capacity: 60, Leak: 0.001}, Cost: 1}}
	decisions := make([]leakybucket.Decision, 1)
	take := func(i int) time.Duration {
		charge[0].Key = fmt.Sprintf("2001:db8:%x:%x::", i>>16, i&0xffff)
		began := time.Now()
		if err := store.Take(context.Background(), charge, decisions); err != nil {
			t.Fatal(err)
		}
		return time.Since(began)
	}
	for i := range million {
		take(i)
	}
	path := filepath.Join(t.TempDir(), "buckets")
	file, err := snapshot.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	// p999 returns what one decision in a thousand of the next two seconds exceeds.
	p999 := func() time.Duration {
		var took []time.Duration
		for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
			for range 20 {
				took = append(took, take(len(took)*7919%million))
			}
			time.Sleep(200 * time.Microsecond)
		}
		slices.Sort(took)
		return took[len(took)*999/1000]
	}
	var added []time.Duration
	for range 5 {
		alone := p999()
		stop, written := make(chan struct{}), make(chan int)
		go func() { // one after the other, where a snapshot_interval would rest
			for n := 0; ; n++ {
				select {
				case <-stop:
					written <- n
					return
				default:
					if err := file.Write(store.WriteSnapshot); err != nil {
						t.Error(err)
					}
				}
			}
		}()
		beside := p999()
		close(stop)
		t.Logf("p99.9 of a decision: %v alone, %v beside the writing of %d snapshots", alone, beside, <-written)
		added = append(added, beside-alone)
	}
	if least := slices.Min(added); least > 5*time.Millisecond {
		t.Errorf("got %v more for one decision in a thousand, want at most 5 ms", least)
	}

	// The time of this thread, since Caddy starts on a machine with less to do.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	best := time.Hour
	for range 3 {
		restored := memstore.New(memstore.Options{MaxBuckets: million})
		began := threadTime(t)
		saved, err := file.Read()
		if err != nil {
			t.Fatal(err)
		}
		found, err := restored.ReadSnapshot(saved, func(c *leakybucket.Charge, _ leakybucket.State) bool {
			c.Limit = charge[0].Limit
			return true
		})
		if err != nil || found.Buckets != million {
			t.Fatalf("got %d buckets and error %v, want a million", found.Buckets, err)
		}
		best = min(best, threadTime(t)-began)
	}
	t.Logf("a million buckets were restored in %v of processor time", best)
	if best > 2*time.Second {
		t.Errorf("got %v for a million buckets, want at most 2 s", best)
	}
	if err := file.Close(); err != nil {
		t.Error(err)
	}
}

// threadTime returns how long this thread has run.
func threadTime(t *testing.T) time.Duration {
	t.Helper()
	const thread = 1 // RUSAGE_THREAD
	var used syscall.Rusage
	if err := syscall.Getrusage(thread, &used); err != nil {
		t.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
