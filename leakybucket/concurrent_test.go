package leakybucket

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

func newBucket(t *testing.T, l Limit) *Bucket {
	t.Helper()
	b, err := NewBucket(l)
	if err != nil {
		t.Fatalf("new bucket of %s: %v", describe(l), err)
	}
	return b
}

func TestABucketNeedsAValidLimit(t *testing.T) {
	for _, l := range []Limit{{}, {1, 0}, {nan, 1}, {1e12, 1e-9}} {
		b, err := NewBucket(l)
		if b != nil || err == nil {
			t.Errorf("new bucket of %s: got %v, %v, want an error", describe(l), b, err)
		}
	}
}

func TestABucketLivesByTheProcessClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBucket(t, reference)
		check.Equal(t, b.Limit(), reference, "limit")
		if d := b.Take(2); !d.Fits || d.Level != 2 || d.Remaining != 1 || d.RetryAfter != 0 {
			t.Errorf("first take: got %+v, want it poured into an empty bucket", d)
		}
		<-time.After(time.Second)
		check.Equal(t, b.Level(), 0.5, "level after a second")
		for cost, want := range map[float64]bool{0: true, 2.5: true, 2.6: false, 4: false, -1: false, nan: false} {
			check.Equal(t, b.Fits(cost), want, "cost %v at level 0.5: fits", cost)
		}
		check.Equal(t, b.Level(), 0.5, "level after asking")
		level, full := b.Fill(9)
		check.That(t, level == 3 && full, "fill: got %+v, want full at 3", level)
		if d := b.Take(1); d.Fits || d.Level != 3 || d.at != at(1) || d.RetryAfter != reference.TimeToFit(3, 1) {
			t.Errorf("take from a full bucket: got %+v, want refused at 3 after a second", d)
		}
		<-time.After(reference.TimeToEmpty(3))
		check.Equal(t, b.Level(), 0, "level after the time to empty")
	})
}

// The clock is read with the lock held: if it were not, a decision could be
// made at an instant before the state it is made on.
func TestDecisionsAreMadeInTheOrderOfTheirInstants(t *testing.T) {
	l := Limit{Capacity: 100, Leak: 1e6} // a unit a microsecond
	b := newBucket(t, l)
	const workers, takes = 8, 5000
	var all [workers][]Result
	var crowd sync.WaitGroup
	for w := range workers {
		crowd.Go(func() {
			for range takes {
				all[w] = append(all[w], b.Take(7))
			}
		})
	}
	crowd.Wait()
	var first, last Instant = 1 << 62, 0
	poured := 0.0
	for w := range all {
		for i, d := range all[w] {
			if i > 0 && d.at < all[w][i-1].at {
				t.Fatalf("worker %d, take %d: got it decided at %d, before the one before it at %d", w, i, d.at, all[w][i-1].at)
			}
			if d.Fits {
				first, last, poured = min(first, d.at), max(last, d.at), poured+7
			}
		}
	}
	bound := l.Capacity*(1+1e-9) + l.Leak*(seconds(last-first)+1e-6)
	check.That(t, poured <= bound, "poured: got %v in %d µs, want at most %v", poured, last-first, bound)
}
