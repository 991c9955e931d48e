package memstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// held holds the clock of a store at *now.
func held(s *Store, now *leakybucket.Instant) *Store {
	s.clock = func() leakybucket.Instant { return *now }
	return s
}

const second leakybucket.Instant = 1e6

// charge returns one to a bucket that holds 1000 and leaks 1/s, so that the
// cost is the number of seconds after which it may be forgotten.
func charge(key string, cost float64) leakybucket.Charge {
	return leakybucket.Charge{Zone: "zone", Key: key, Limit: leakybucket.Limit{Capacity: 1000, Leak: 1}, Cost: cost}
}

func take(t *testing.T, s *Store, charges ...leakybucket.Charge) []leakybucket.Decision {
	t.Helper()
	decisions := make([]leakybucket.Decision, len(charges))
	check.OK(t, s.Take(context.Background(), charges, decisions), "taking %d charges", len(charges))
	return decisions
}

// mustTake takes charges that must fit.
func mustTake(t *testing.T, s *Store, charges ...leakybucket.Charge) {
	t.Helper()
	for i, d := range take(t, s, charges...) {
		check.Assume(t, d.Poured, "cost %v to %.40q: got refused at level %v, want it poured", charges[i].Cost, charges[i].Key, d.Level)
	}
}

// level asks how full a bucket is, with a cost that can never fit.
func level(t *testing.T, s *Store, key string) float64 {
	t.Helper()
	return take(t, s, charge(key, 1e12))[0].Level
}

func buckets(s *Store) int {
	sum := 0
	for _, n := range s.Buckets() {
		sum += n
	}
	return sum
}

func TestLongKeysAreKeptAndTooLongOnesRefused(t *testing.T) {
	now := second
	s := held(New(Options{MaxBuckets: 100}), &now)
	var kept []string
	for i, length := range []int{0, 1, 255, 256, 257, 4096, 10_000, 10_001, 1<<15 - 1 - len("zone")} {
		key := strings.Repeat("x", length)
		kept = append(kept, key)
		mustTake(t, s, charge(key, float64(i+1)))
		mustBeSound(t, s)
	}
	for _, length := range []int{1<<15 - len("zone"), 1 << 15, 1<<16 - 1, 1 << 16, 1<<16 + 1, 1 << 20} {
		charges := []leakybucket.Charge{charge("beside", 1), charge(strings.Repeat("x", length), 1)}
		want := fmt.Sprintf(`zone "zone": key of %d bytes is too long for the memory store: want at most 32767 with the zone: not a bucket`, length)
		for _, together := range [][]leakybucket.Charge{charges, charges[1:]} {
			err := s.Take(context.Background(), together, make([]leakybucket.Decision, len(together)))
			check.That(t, errors.Is(err, store.ErrBadBucket) && err.Error() == want, "taking %d charges: got error %v, want %q", len(together), err, want)
		}
	}
	mustBeSound(t, s)
	check.Equal(t, level(t, s, "beside"), 0, "bucket beside one that cannot be kept: level")
	for i, key := range kept {
		check.Equal(t, level(t, s, key), float64(i+1), "bucket of a key of %d bytes: the level", len(key))
	}
}

// The table tells names apart by their hash first. It must not stop there.
func TestNamesOfOneHashAreTwoBuckets(t *testing.T) {
	s := New(Options{MaxBuckets: 100})
	sh := &s.shards[0]
	names := []leakybucket.Charge{charge("a", 1), charge("b", 1), charge("ab", 1), {Zone: "zon", Key: "ea"}, {Zone: "other", Key: "a"}, {Zone: "zone", Key: "a", Shadow: true}}
	const hash = 0x1234567890abcdef
	for i := range names {
		at, kept := sh.find(hash, names[i].Zone, names[i].Key, names[i].Shadow)
		check.That(t, !kept, "name %d: got it found in slot %d before it was there", i, at)
		names[i].Limit = leakybucket.Limit{Capacity: 10, Leak: 1}
		sh.insert(hash, &names[i], &leakybucket.State{Level: 1}, 0, never)
	}
	seen := make(map[int]bool)
	for i := range names {
		at, kept := sh.find(hash, names[i].Zone, names[i].Key, names[i].Shadow)
		check.That(t, kept && !seen[at], "name %d: got it found %v in slot %d, want a slot of its own", i, kept, at)
		seen[at] = true
	}
}

// A shard numbers its zones. Beyond what the number can tell, it spells them.
func TestAStoreKeepsBucketsOfAnyNumberOfZones(t *testing.T) {
	oneByOne(t)
	now := second
	s := held(New(Options{MaxBuckets: 4096}), &now)
	s.SetMaxBuckets(mostZones + 2000)
	zones := make([]leakybucket.Charge, mostZones+1000)
	for i := range zones {
		zones[i] = charge([]string{"", "key", strings.Repeat("long", 20)}[i%3], float64(1+i%900))
		zones[i].Zone = fmt.Sprint("zone", i)
		mustTake(t, s, zones[i])
	}
	mustBeSound(t, s)
	now += 450 * second // half of them may be forgotten, and their numbers used again
	s.Shed()
	for i := range zones {
		if i%2 == 0 {
			zones[i].Zone = fmt.Sprint("another", i)
			mustTake(t, s, zones[i])
		}
	}
	mustBeSound(t, s)
	for i, c := range zones {
		want := max(0, c.Cost-450)
		if i%2 == 0 {
			want = c.Cost
		}
		got := s.State(&c)
		check.Assume(t, got.Level-got.Leak*now.Sub(got.At).Seconds() >= want-1e-6, "zone %s: got level %v at %d, want %v now", c.Zone, got.Level, got.At, want)
	}
	check.Equal(t, len(s.Buckets()), buckets(s), "zones counted, want one for each bucket")
}

// The store's own clock counts from 1970 and runs with the process's.
func TestAStoreLivesByTheProcessClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{})
		for range 3 {
			d := take(t, s, charge("k", 1))[0]
			want := leakybucket.Instant(time.Now().UnixMicro())
			check.That(t, d.At == want, "decision: got it at %d, want at %d", d.At, want)
			<-time.After(1500 * time.Millisecond)
		}
		check.Equal(t, level(t, s, "k"), 0, "level after 3 pours of 1 and 4.5 s at 1/s")
	})
}

func TestATakeAllocatesNothing(t *testing.T) {
	s := New(Options{})
	charges := make([]leakybucket.Charge, 20)
	for i := range charges {
		charges[i] = charge(fmt.Sprint("k", i), 1e-3)
	}
	decisions := make([]leakybucket.Decision, len(charges))
	for _, n := range []int{1, 2, 8, 20} {
		if n > 1 && raceDetector {
			continue // the detector makes pools forget
		}
		check.Equal(t, testing.AllocsPerRun(100, func() { s.Take(context.Background(), charges[:n], decisions[:n]) }), 0, "allocations to take %d charges", n)
	}
}

func TestALimiterTakesWithoutAllocating(t *testing.T) {
	limiter := check.Must(leakybucket.NewLimiter(New(Options{}), leakybucket.Limit{Capacity: 1e8, Leak: 1}, leakybucket.LimiterOptions{}))(t)
	check.Equal(t, testing.AllocsPerRun(1000, func() { limiter.Allow("k") }), 0, "allocations of a take")
}

// A block that would end at once is nothing to keep.
func TestABlockOfNothingMakesNoBucket(t *testing.T) {
	s, c := New(Options{}), charge("k", 2)
	c.Ceiling, c.Block = 1, &leakybucket.Ladder{}
	take(t, s, c)
	check.That(t, buckets(s) == 0, "buckets: got %d, want none", buckets(s))
}

// Few other buckets share the end of a block.
func TestABlockMayRunInItsBucketAndHardlyInOthersUntilItEnds(t *testing.T) {
	now := leakybucket.Instant(1)
	s := held(New(Options{}), &now)
	may := func(zone string, keys ...int) (n int) {
		for i := keys[0]; i < keys[1]; i++ {
			if s.MayBlock(zone, fmt.Sprint(i)) {
				n++
			}
		}
		return n
	}
	check.Equal(t, may("", 0, 100), 0, "keys in an empty store")
	for i := range 100 {
		c := charge(fmt.Sprint(i), 600)
		c.Block, c.Shadow = &leakybucket.Ladder{Steps: []time.Duration{time.Minute}}, i%2 == 0
		take(t, s, c)
		take(t, s, c)
	}
	for zone, want := range map[string]int{"": 100, "zone": 100, "other": 0} {
		got, others := may(zone, 0, 100)-want, may(zone, 100, 1000)
		check.That(t, 0 <= got && got <= 50 && others <= 50, "zone %q: got %d blocked keys more than %d, and %d of 900 others, want at most 50 of either", zone, got, want, others)
	}
	now += 60 * second
	check.Equal(t, may("", 0, 100), 0, "keys once the blocks have ended")
}

// For the race detector: everything at once, in a store that is too small.
func TestAStoreIsSafeForConcurrentUse(t *testing.T) {
	s := New(Options{MaxBuckets: 10_000})
	var crowd sync.WaitGroup
	for w := range 4 {
		crowd.Go(func() {
			for i := range 3000 {
				key := func(n int) string { return fmt.Sprint("k", (i*7+w*n)%20_000) }
				charges := []leakybucket.Charge{charge(key(0), 1), charge(key(1), 1), charge("all", 1e-3)}
				decisions := make([]leakybucket.Decision, len(charges))
				for n := range charges {
					check.NoError(t, s.Take(context.Background(), charges[:n+1], decisions), "taking %d charges", n+1)
				}
				for n, c := range charges {
					of := leakybucket.Settlement{Charge: c, Was: decisions[n], Diff: -c.Cost / 2, Cancel: i%2 == 0}
					check.NoError(t, s.Settle(context.Background(), []leakybucket.Settlement{of}), "settling")
				}
				block := charge("b"+key(0), 600)
				block.Block = &leakybucket.Ladder{Steps: []time.Duration{time.Hour}}
				check.NoError(t, s.Take(context.Background(), []leakybucket.Charge{block}, decisions), "taking what blocks")
				known := s.MayBlock("zone", block.Key) && s.MayBlock("", block.Key)
				check.That(t, known || decisions[0].BlockedUntil == 0, "%s: got it not known to be blocked", block.Key)
				if i%100 == 0 {
					s.Shed()
					s.SetMaxBuckets(1000 + i)
					s.Buckets()
					s.Evictions()
					s.Reset(context.Background(), "zone", key(1), false)
				}
			}
		})
	}
	crowd.Wait()
	s.SetMaxBuckets(5000)
	mustBeSound(t, s)
	got := buckets(s)
	check.That(t, got <= 5000, "buckets: got %d, want at most 5000", got)
}

// A state that is put is kept as it is, and counts from then on as if it had been
// charged here: its leak, its block and the step of that too.
func TestPutKeepsExactlyTheState(t *testing.T) {
	now := leakybucket.Instant(1e15)
	s := held(New(Options{}), &now)
	c := charge("k", 1)
	c.Limit.Leak = 0.5
	s.Put(&c, leakybucket.State{Level: math.NaN(), At: now})
	check.Equal(t, buckets(s), 0, "after what is no state was put: buckets")
	c.Block = &leakybucket.Ladder{Steps: []time.Duration{time.Minute, 10 * time.Minute}}
	state := leakybucket.State{Level: 5, At: now - 1e6, Leak: 0.5, BlockedUntil: now + 540e6, Step: 1}
	for range 2 { // as a new bucket, and over an old one
		s.Put(&c, state)
		check.Equal(t, s.State(&c), state, "put")
	}
	d := take(t, s, c)[0]
	check.That(t, d.BlockedUntil == state.BlockedUntil && d.Step == 1 && d.Level == 4.5, "take of a bucket that was put: got %+v, want it blocked at level 4.5, on the second step", d)
	for _, wrong := range []leakybucket.State{{Level: math.NaN()}, {Level: math.Inf(1)}, {Level: -1}, {Leak: -1}, {Leak: math.NaN()}, {Level: 1, Leak: math.Inf(1)}} {
		s.Put(&c, wrong)
		got := s.State(&c)
		check.That(t, got == state, "put %+v: got %+v, want %+v unchanged", wrong, got, state)
	}
	s.Put(&c, leakybucket.State{Level: 5, At: now - 100e6, Leak: 0.5})
	if s.Shed(); buckets(s) != 0 {
		got := buckets(s)
		t.Errorf("after a state was put that may be forgotten: got %d buckets, want none", got)
	}
	s.Put(&c, leakybucket.State{})
	check.Equal(t, buckets(s), 0, "after an empty state was put: buckets")
}

// blocking is charge with a block of a minute, and then of an hour.
func blocking(key string, cost float64) leakybucket.Charge {
	c := charge(key, cost)
	c.Block = &leakybucket.Ladder{Steps: []time.Duration{time.Minute, time.Hour}}
	return c
}

// block fills a bucket and lets it overflow, so that its level and its block are
// there to be lost.
func block(t *testing.T, s *Store, c leakybucket.Charge) leakybucket.Decision {
	t.Helper()
	c.Cost = 1000
	mustTake(t, s, c)
	d := take(t, s, c)[0]
	check.Assume(t, d.Began, "overflow of %.40q: got %+v, want a block to begin", c.Key, d)
	return d
}

func reset(t *testing.T, s *Store, c leakybucket.Charge) {
	t.Helper()
	check.NoError(t, s.Reset(context.Background(), c.Zone, c.Key, c.Shadow), "resetting %s/%.40q", c.Zone, c.Key)
}

// The clock is read before the lock is taken, so another take may come between. A bucket that
// drains within that time must not be filled twice.
func TestATakeThatWaitedForTheLockReadsTheClockAnew(t *testing.T) {
	for _, block := range []*leakybucket.Ladder{nil, {}} {
		instants := []leakybucket.Instant{second + 100, second + 50, second + 101}
		s := New(Options{Clock: func() (now leakybucket.Instant) {
			now, instants = instants[0], instants[1:]
			return now
		}})
		c := charge("k", 1)
		c.Limit, c.Block = leakybucket.Limit{Capacity: 1, Leak: 1e6}, block
		mustTake(t, s, c)
		got := take(t, s, c)[0]
		want := second + 101
		check.That(t, got.Poured && got.At == want && got.Level == 0, "block %v: got %+v, want it poured into an empty bucket at %v", block, got, want)
		check.That(t, len(instants) == 0, "block %v: the clock was read %d times less than thrice", block, len(instants))
	}
}

func TestStoreKeepsTheContract(t *testing.T) { storetest.Run(t, open) }

// Whatever the size of the pages, a listing has each bucket once: buckets that found their places
// taken, too, which lie on the next page or, behind the last slot, at the first.
func TestPages(t *testing.T) {
	s := New(Options{MaxBuckets: 4096})
	want := make(map[string]int)
	for i := range 1500 {
		c := charge(fmt.Sprint("k", i), 900)
		mustTake(t, s, c)
		want[c.Key] = 1
	}
	for _, scan := range []int{1, 7, 64, 1000, 4096} {
		got := make(map[string]int)
		for entry, err := range store.ListAll(t.Context(), s, store.Filter{Zone: "zone", Scan: scan}) {
			check.OK(t, err, "listing pages of %d", scan)
			got[entry.Key]++
		}
		check.That(t, maps.Equal(got, want), "pages of %d: got %d buckets, want each of %d once", scan, len(got), len(want))
	}
	for _, cursor := range []string{"x", fmt.Sprintf("%x-2-0", int64(s.epoch)), fmt.Sprintf("%x--1-0", int64(s.epoch)), fmt.Sprintf("%x-0-100000000", int64(s.epoch)), fmt.Sprintf("%x-00-0", int64(s.epoch))} {
		_, _, err := s.List(t.Context(), store.Filter{Zone: "zone", Scan: 10}, cursor)
		check.That(t, errors.Is(err, store.ErrBadCursor), "cursor %q: got %v, want that it is not of this process", cursor, err)
	}
}

// BenchmarkTake runs as BenchmarkTake/store=memory/keys=1e6/order=uniform and
// the like.
func BenchmarkTake(b *testing.B) {
	b.Run("store=memory", func(b *testing.B) { storetest.Benchmark(b, open) })
}

// open opens a store that runs on its own clock until it is held.
func open(_ testing.TB, need storetest.Need) (leakybucket.Store, func(leakybucket.Instant)) {
	s := New(Options{MaxBuckets: need.MaxBuckets})
	return s, func(at leakybucket.Instant) {
		s.clock = func() leakybucket.Instant { return at }
	}
}

const million = 1_000_000

// appendAddress appends the i-th of 16 million IPv4 addresses.
func appendAddress(key []byte, i int) []byte {
	key = append(key, "203."...)
	key = strconv.AppendInt(key, int64(i>>16&0xff), 10)
	key = strconv.AppendInt(append(key, '.'), int64(i>>8&0xff), 10)
	return strconv.AppendInt(append(key, '.'), int64(i&0xff), 10)
}

func heap() (bytes, objects uint64) {
	runtime.GC()
	runtime.GC() // what the first one found to be finalized
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc, m.HeapObjects
}

// oneByOne skips a test of many takes one after the other, in which no race can be detected.
func oneByOne(t *testing.T) {
	t.Helper()
	if raceDetector {
		t.Skip("nothing here runs beside another")
	}
}

func TestAMillionAddressesTakeLittleMemory(t *testing.T) {
	oneByOne(t)
	if testing.Short() {
		t.Skip("a million buckets are not for -short")
	}
	bytesBefore, objectsBefore := heap()
	s := New(Options{MaxBuckets: million})
	key, one, decisions := make([]byte, 0, 16), []leakybucket.Charge{charge("", 600)}, make([]leakybucket.Decision, 1)
	for i := range million {
		key = appendAddress(key[:0], i)
		one[0].Key = string(key)
		check.OK(t, s.Take(context.Background(), one, decisions), "taking a charge")
	}
	bytes, objects := heap()
	got := buckets(s)
	check.Assume(t, got == million && s.Evictions() == 0, "buckets: got %d after %d evictions, want %d after none", got, s.Evictions(), million)
	perKey := float64(bytes-bytesBefore) / million
	objectsPerKey := float64(objects-objectsBefore) / million
	t.Logf("%.1f bytes and %.4f objects a key", perKey, objectsPerKey)
	check.That(t, perKey <= 96, "heap: got %.1f bytes a key, want at most 96", perKey)
	check.That(t, objectsPerKey <= 0.05, "heap: got %.4f objects a key, want at most 0.05", objectsPerKey)
	runtime.KeepAlive(s)
}
