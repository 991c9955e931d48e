package bench

import (
	"math"
	"testing"
	"time"
)

// These tests compare limiters that take turns on the same machine in the same
// seconds. The best turn of each counts, because other work on the machine can
// only make a turn worse. No test asserts a time.

func TestTakeOnOneKeyIsAsFastAsSethvargo(t *testing.T) {
	skipShort(t)
	compare(t, 1.0, openMemstore(bottomless), openSethvargo(bottomless), one(), 200_000)
}

func TestTakeAmongAMillionKeysIsAsFastAsAMapOfXTime(t *testing.T) {
	skipShort(t)
	ours, theirs := openMemstore(roomy), openXTime(roomy)
	fill(ours.taker())
	fill(theirs.taker())
	compare(t, 1.0, ours, theirs, uniform(), 300_000)
}

func TestTakeDoesNotAllocate(t *testing.T) {
	take, key := openMemstore(bottomless).taker(), one().at(0)
	if got := testing.AllocsPerRun(1000, func() { take(key) }); got != 0 {
		t.Errorf("got %v allocations a take, want 0", got)
	}
}

func TestAMillionKeysTakeAtMost130BytesEach(t *testing.T) {
	skipShort(t)
	bytes, objects := heapPerKey(limiter{"memstore", openMemstore})
	t.Logf("%.1f bytes and %.3f objects a key", bytes, objects)
	if bytes > 130 {
		t.Errorf("got %.1f bytes a key, want at most 130", bytes)
	}
}

// compare fails if ours takes more than most times as long as theirs. It stops as
// soon as the best turns show that it does not, after a few turns at least.
func compare(t *testing.T, most float64, ours, theirs store, order *keys, takes int) {
	t.Helper()
	defer ours.close()
	defer theirs.close()
	const few, enough = 8, 40
	ourTurn, theirTurn := turns(t, ours, order, true, takes), turns(t, theirs, order, true, takes)
	ourBest, theirBest, n := math.Inf(1), math.Inf(1), 0
	for n < few || n < enough && ourBest > most*theirBest {
		ourBest, theirBest = min(ourBest, ourTurn()), min(theirBest, theirTurn())
		n++
	}
	ratio := ourBest / theirBest
	t.Logf("memstore %.1f ns, the other %.1f ns, ratio %.2f; best of %d turns", ourBest, theirBest, ratio, n)
	if ratio > most {
		t.Errorf("got %.2f of the other's time, want at most %.2f", ratio, most)
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
