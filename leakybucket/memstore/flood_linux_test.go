package memstore

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// resident returns how much memory of the process is in use, in bytes.
func resident(t *testing.T) int {
	t.Helper()
	text := check.Must(os.ReadFile("/proc/self/statm"))(t)
	var size, pages int
	check.Must(fmt.Sscan(string(text), &size, &pages))(t)
	return pages * os.Getpagesize()
}

// A flood shows a store new keys, 100,000 a second, among which blocked and lawful clients
// come again and again.
type flood struct {
	keys, most int
	leak       float64 // of the new keys, for which buckets are kept for 1/leak seconds
	growth     int     // of the process, at most, in bytes
	keyLength  int     // of the new keys; at least 16
}

const (
	blockedClients = 1000
	lawfulClients  = 1000
)

func (f flood) run(t *testing.T) {
	runtime.LockOSThread() // whose time each take is measured in
	defer runtime.UnlockOSThread()
	runtime.GC()
	before, peak := resident(t), 0
	now := second
	s := New(Options{MaxBuckets: f.most, Clock: func() leakybucket.Instant { return now }})
	blocked := func(i int) leakybucket.Charge {
		c := charge(fmt.Sprint("blocked", i), 1)
		c.Block = &leakybucket.Ladder{Steps: []time.Duration{24 * time.Hour}}
		return c
	}
	for i := range blockedClients {
		block(t, s, blocked(i))
	}
	var lawful [lawfulClients]leakybucket.Charge
	for i := range lawful {
		lawful[i] = charge(fmt.Sprint("lawful", i), 1)
		lawful[i].Limit = leakybucket.Limit{Capacity: 5, Leak: 2}
	}
	fresh, decisions := []leakybucket.Charge{charge("", 1)}, make([]leakybucket.Decision, 1)
	fresh[0].Limit.Leak = f.leak
	filler := strings.Repeat("x", f.keyLength-16)
	took := make([]time.Duration, 0, f.keys/8+1)
	for i := range f.keys {
		now += 10
		fresh[0].Key = fmt.Sprintf("%016x%s", i, filler)
		if i%8 != 0 {
			_ = s.Take(context.Background(), fresh, decisions)
		} else {
			took = append(took, timed(func() { _ = s.Take(context.Background(), fresh, decisions) }))
		}
		check.Assume(t, decisions[0].Poured, "new key %d: got %+v, want it poured", i, decisions[0])
		if i%100 == 0 { // so each lawful client comes once a second
			d := take(t, s, lawful[i/100%lawfulClients])[0]
			check.Assume(t, d.Poured, "lawful client after %d keys: got %+v, want it poured", i, d)
		}
		if i%(f.keys/20) == 0 {
			peak = max(peak, resident(t))
			s.Shed()
		}
	}
	for i := range blockedClients {
		d := take(t, s, blocked(i))[0]
		check.Assume(t, d.BlockedUntil != 0 && !d.Began, "blocked client %d after the flood: got %+v, want it blocked", i, d)
	}
	got := buckets(s)
	check.That(t, got <= f.most, "got %d buckets, want at most %d", got, f.most)
	peak = max(peak, resident(t))
	slices.Sort(took)
	n := len(took)
	t.Logf("%d keys into %d buckets: memory grew by %.1f MiB; a decision took p50 %v, p99 %v, p99.9 %v, at most %v of processor time; %d evictions",
		f.keys, f.most, float64(peak-before)/(1<<20), took[n/2], took[n*99/100], took[n*999/1000], took[n-1], s.Evictions())
	growth := peak - before
	check.That(t, growth <= f.growth, "got %d MiB more memory in use, want at most %d", growth>>20, f.growth>>20)
	if p99 := took[n*99/100]; os.Getenv("TEST_LONG") == "1" && p99 > 50*time.Microsecond {
		t.Errorf("got a 99th percentile of %v, want at most 50 microseconds", p99)
	}
	// How long a lock is held at most is up to TestNoLockIsHeldForAMillisecond.
}

// TestAFloodOfNewKeysNeitherFillsMemoryNorFreesTheBlocked has two kinds of floods: of keys
// that may be forgotten soon, and of those that only give way to each other.
func TestAFloodOfNewKeysNeitherFillsMemoryNorFreesTheBlocked(t *testing.T) {
	oneByOne(t)
	const mib = 1 << 20
	floods := []flood{{keys: 150_000, most: 20_000, growth: 64 * mib}}
	long := flood{keys: 100_000, most: 20_000, growth: 64 * mib, leak: 1e-3, keyLength: 256} // a bucket takes 64 bytes, and its key 256 more
	if os.Getenv("TEST_LONG") == "1" {
		const all = 10_000_000
		floods = []flood{{keys: all, most: 100_000, growth: 64 * mib}, {keys: all, most: 1_000_000, growth: 256 * mib}}
	}
	for _, f := range floods {
		for _, leak := range []float64{10, 1e-3} {
			t.Run(fmt.Sprintf("most=%d/leak=%v", f.most, leak), func(t *testing.T) {
				f.leak, f.keyLength = leak, 16
				f.run(t)
			})
		}
	}
	t.Run("long keys", long.run)
}

// TestKeysThatMeetInOneStoreAreSpreadInAnother: only one who knows the seed can choose
// keys that meet in a shard. Where they do, they still are bounded.
func TestKeysThatMeetInOneStoreAreSpreadInAnother(t *testing.T) {
	oneByOne(t)
	const chosen, most = 20_000, 64 * bucketsPerShard
	now := second
	first, other := held(New(Options{MaxBuckets: most}), &now), held(New(Options{MaxBuckets: most}), &now)
	for i, found := 0, 0; found < chosen; i++ {
		c := charge(fmt.Sprint("k", i), 1)
		if first.hasher.charge(&c)>>first.shift != 0 {
			continue
		}
		found++
		mustTake(t, first, c)
		mustTake(t, other, c)
	}
	if got := first.shards[0].count; got != chosen {
		t.Errorf("got %d of the chosen keys in the shard of the first store, want all %d", got, chosen)
	}
	mean := chosen / len(other.shards)
	for i := range other.shards {
		got := other.shards[i].count
		check.That(t, got >= mean/2 && got <= 2*mean, "shard %d of the other store: got %d keys, want about %d", i, got, mean)
	}
	mustBeSound(t, first)
}
