package memstore

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/testseed"
)

// drains returns the seconds until each bucket may be forgotten, soonest first.
func drains(s *Store, now leakybucket.Instant) []float64 {
	var all []float64
	for i := range s.shards {
		for at := range s.shards[i].used() {
			all = append(all, s.shards[i].slots[at].forget().Sub(now).Seconds())
		}
	}
	slices.Sort(all)
	return all
}

// fill pours 1 to n into as many buckets, in any order.
func fill(t *testing.T, s *Store, rng *rand.Rand, n int) {
	t.Helper()
	for _, i := range rng.Perm(n) {
		mustTake(t, s, charge(fmt.Sprint("k", i+1), float64(i+1)))
	}
}

// The bound of a group gets old while its buckets are poured into, and
// only a few are looked at anew. The victim must still be among the first tenth.
func TestAmongBucketsInUseOneOfTheSoonestIsDropped(t *testing.T) {
	oneByOne(t)
	seed := testseed.Of(t)
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	now := second
	const most = 4096
	s := held(New(Options{MaxBuckets: most}), &now)
	use := func(i int) { take(t, s, charge(fmt.Sprint("k", i), 1+300*rng.Float64())) }
	for i := range most {
		use(i)
	}
	worst, sum, dropped := 0, 0, 0
	for i := range 500 {
		for range 50 {
			use(rng.IntN(most))
		}
		now += second / 1000
		before := drains(s, now)
		evictions := s.Evictions()
		mustTake(t, s, charge(fmt.Sprint("new", i), 999))
		if s.Evictions() == evictions {
			continue
		}
		rank := firstMissing(before, drains(s, now))
		worst, sum, dropped = max(worst, rank), sum+rank, dropped+1
	}
	t.Logf("of %d that were dropped there stood %.1f before it on average, %d at worst, of %d", dropped, float64(sum)/float64(dropped), worst, most)
	if dropped < 100 || worst > most/10 {
		t.Errorf("buckets that would be empty before one that was dropped: got %d at worst in %d times, want at most %d in 100 or more",
			worst, dropped, most/10)
	}
}

// firstMissing returns how many stand before the first in which two sorted
// lists differ.
func firstMissing(before, after []float64) int {
	for i := range before {
		if after[i] != before[i] {
			return i
		}
	}
	return len(before)
}

// However chance fills the shards, no live bucket is dropped before the whole
// store is full.
func TestNoLiveBucketIsDroppedBeforeTheStoreIsFull(t *testing.T) {
	now := second
	s := New(Options{MaxBuckets: 50_000})
	held(s, &now)
	check.Assume(t, len(s.shards) >= 8, "shards: got %d, want several", len(s.shards))
	for i := range 50_000 {
		mustTake(t, s, charge(fmt.Sprint("k", i), 1+float64(i%900)))
	}
	check.Need(t, buckets(s), 50_000, "buckets of a full store")
	check.Need(t, s.Evictions(), 0, "evictions until it is full")
	mustBeSound(t, s)
	// Then the soonest of all shards goes first: those of 1 s, and then of 2.
	for i := range 100 {
		mustTake(t, s, charge(fmt.Sprint("new", i), 999))
	}
	got := drains(s, now)
	check.That(t, len(got) == 50_000 && got[0] == 2 && s.Evictions() == 100, "100 more: got %d buckets, the first in %v s, after %d evictions, want 50000, in 2 s, after 100", len(got), got[0], s.Evictions())
	// Empty buckets of any shard go before live ones.
	now += 10 * second
	for i := range 300 {
		mustTake(t, s, charge(fmt.Sprint("newer", i), 999))
	}
	check.Equal(t, s.Evictions(), 100, "evictions, want none while there were empty buckets")
	mustBeSound(t, s)
}

// Takes of several charges need room for all of them, and no more.
func TestTakesOfSeveralMakeRoomForWhatTheyCreate(t *testing.T) {
	now := second
	s := held(New(Options{MaxBuckets: 100}), &now)
	fill(t, s, rand.New(rand.NewPCG(7, 0)), 99)
	a, b := charge("a", 900), charge("b", 900)
	oversize := charge("oversize", 2000)
	take(t, s, a, b, oversize) // nothing is poured, and nothing dropped
	got := s.Evictions()
	check.That(t, got == 0 && buckets(s) == 99, "a take that pours nothing: got %d buckets after %d evictions, want 99 after none", buckets(s), got)
	half := charge("a", 450)
	take(t, s, half, half) // one bucket
	got = s.Evictions()
	check.That(t, got == 0 && buckets(s) == 100, "a take of one bucket twice: got %d buckets after %d evictions, want 100 after none", buckets(s), got)
	take(t, s, b, charge("c", 900), charge("k99", 1))
	got = s.Evictions()
	check.That(t, got == 2 && buckets(s) == 100, "a take that creates two: got %d buckets after %d evictions, want 100 after 2", buckets(s), got)
	mustBeSound(t, s)
	s.SetMaxBuckets(1)
	take(t, s, charge("d", 900), charge("e", 900)) // more than there is room for
	check.Equal(t, buckets(s), 1, "a take of two with a bound of one: buckets")
	mustBeSound(t, s)
}

// slots returns how many slots a store holds on to.
func slots(s *Store) (slots int) {
	for i := range s.shards {
		slots += len(s.shards[i].slots)
	}
	return slots
}

func TestShedGivesBackWhatAFewBucketsDoNotNeed(t *testing.T) {
	now := second
	s := held(New(Options{MaxBuckets: 4096}), &now)
	for i := range 64 {
		mustTake(t, s, charge(fmt.Sprint("long", i), 900))
	}
	for i := range 3936 {
		mustTake(t, s, charge(fmt.Sprintf("short%0100d", i), 1))
	}
	now += 2 * second
	for range 10 {
		s.Shed()
		mustBeSound(t, s)
	}
	names := cap(s.shards[0].names)
	check.That(t, buckets(s) == 64 && slots(s) <= 128 && names == 0, "with 64 of 4000 buckets left: got %d, in %d slots, and room for %d bytes of names, want at most 128, and none", buckets(s), slots(s), names)
	check.Equal(t, s.Evictions(), 0, "evictions")
}

// A store that was made small and had its bound raised has large shards.
func TestShedGoesThroughALargeShardInSteps(t *testing.T) {
	now := second
	s := held(New(Options{MaxBuckets: 1}), &now)
	s.SetMaxBuckets(10_000)
	for i := range 10_000 {
		mustTake(t, s, charge(fmt.Sprint("k", i), 1+float64(i%2)))
	}
	for _, want := range []int{10_000, 5000, 0} {
		s.Shed()
		mustBeSound(t, s)
		check.Equal(t, buckets(s), want, "buckets after %v", now.Sub(second))
		now += second
	}
	_, more := s.shards[0].shed(0, s.now)
	check.That(t, !more && slots(s) == 0 && len(s.Buckets()) == 0, "of an empty shard: got %d slots, and more to shed %v, want nothing", slots(s), more)
	mustTake(t, s, charge("k", 1)) // and goes on
	mustBeSound(t, s)
}

// Without Shed, whoever asks for an empty bucket looks for those that have rested.
func TestATrickleOfRequestsForgetsWhatHasRested(t *testing.T) {
	again := func(i int) leakybucket.Charge { return charge(fmt.Sprint("again", i), 1) }
	for _, test := range []struct {
		name string
		ask  func(s *Store, i int)
		left func(groups int) int
	}{
		{"a new bucket", func(s *Store, i int) { mustTake(t, s, again(i)) }, func(groups int) int { return groups }},
		{"a kept one", func(s *Store, _ int) { mustTake(t, s, again(0)) }, func(int) int { return 3 }},
		{"three", func(s *Store, _ int) { mustTake(t, s, again(0), again(1), again(2)) }, func(int) int { return 3 }},
		{"a limiter's", func(s *Store, _ int) {
			l := check.Must(leakybucket.NewLimiter(s, again(0).Limit, leakybucket.LimiterOptions{Zone: "zone"}))(t)
			l.Allow("again0")
		}, func(int) int { return 3 }},
	} {
		t.Run(test.name, func(t *testing.T) {
			now := second
			s := held(New(Options{MaxBuckets: 4096}), &now)
			fill(t, s, rand.New(rand.NewPCG(5, 0)), 900)
			groups := len(s.shards[0].soonest)
			now += 959 * second
			mustTake(t, s, again(0), again(1), again(2))
			for i := range groups {
				now += 2 * second
				test.ask(s, i)
			}
			check.Equal(t, buckets(s), test.left(groups), "buckets, want those that were asked for lately")
			mustBeSound(t, s)
		})
	}
}

// A table grows for what is not empty, and for what rests while the store is less than half full.
func TestAFullTableForgetsBeforeItGrows(t *testing.T) {
	for _, test := range []struct {
		most  int
		later leakybucket.Instant
		grows bool
	}{{4096, 70 * second, false}, {4096, 2 * second, true}, {4096, 0, true}, {900, 2 * second, false}} {
		now := second
		s := held(New(Options{MaxBuckets: test.most}), &now)
		length := 0
		for _, name := range []string{"first", "second", "third"} {
			for i := range 500 {
				mustTake(t, s, charge(fmt.Sprint(name, i), 1))
			}
			mustBeSound(t, s)
			length = cmp.Or(length, slots(s))
			now += test.later
		}
		check.That(t, (slots(s) > length) == test.grows, "%+v: got %d slots, at first %d", test, slots(s), length)
		check.Equal(t, s.Evictions(), 0, "evictions")
	}
}

// Its old bucket is the first to go, and the take that drops it still finds it.
func TestNewKeysDoNotRidAClientOfItsOldOnes(t *testing.T) {
	for _, most := range []int{1, 2, 100, 10_000} {
		now := second
		s := held(New(Options{MaxBuckets: most}), &now)
		for i := range most - 1 {
			mustTake(t, s, charge(fmt.Sprint("other", i), 900))
		}
		client := charge("client", 1)
		client.Limit.Capacity = 10
		for i := range 20 {
			got := take(t, s, client, charge(fmt.Sprint("new", i), 800))
			if want := i < 10; got[0].Fits != want || most > 1 && got[0].Level != float64(min(i, 10)) {
				t.Fatalf("at most %d buckets, request %d: got %+v for the client, want fits %v", most, i, got[0], want)
			}
			if most == 1 {
				break // nothing is remembered from one request to the next
			}
		}
		mustBeSound(t, s)
	}
}
