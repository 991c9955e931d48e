package bench

import (
	"math"
	"testing"
	"time"
)

func TestTakeDoesNotAllocate(t *testing.T) {
	take, key := openMemstore(bottomless).taker(), one().at(0)
	if got := testing.AllocsPerRun(1000, func() { take(key) }); got != 0 {
		t.Errorf("got %v allocations a take, want 0", got)
	}
}

func TestAMillionKeysTakeAtMost96BytesEach(t *testing.T) {
	skipShort(t)
	f := footprintOf(limiter{"memstore", openMemstore})
	t.Logf("%.1f bytes and %.3f objects a key", f.bytes, f.objects)
	if f.bytes > 96 {
		t.Errorf("got %.1f bytes a key, want at most 96", f.bytes)
	}
}

// turns returns a function that makes so many takes, and returns how many
// nanoseconds one took in the best part of the turn. A part is so short that
// little interferes, and the first parts refill the caches after the other's
// turn. Each call continues with the next keys.
func turns(t *testing.T, s store, order *keys, want bool, takes int) func() float64 {
	const part = 10_000
	take, next := s.taker(), 0
	return func() float64 {
		best := time.Duration(math.MaxInt64)
		for range takes / part {
			began := time.Now()
			for range part {
				if take(order.at(next)) != want {
					t.Fatalf("take: got allowed %v, want %v", !want, want)
				}
				if next++; next == order.len() {
					next = 0
				}
			}
			best = min(best, time.Since(began))
		}
		return float64(best) / part
	}
}

func skipShort(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("SKIPPED: measures; run without -short")
	}
}
