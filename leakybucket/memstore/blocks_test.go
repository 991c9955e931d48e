package memstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

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
	if !d.Began {
		t.Fatalf("overflow of %.40q: got %+v, want a block to begin", c.Key, d)
	}
	return d
}

func reset(t *testing.T, s *Store, c leakybucket.Charge) {
	t.Helper()
	if err := s.Reset(context.Background(), c.Zone, c.Key, c.Shadow); err != nil {
		t.Errorf("resetting %s/%.40q: got error %v, want none", c.Zone, c.Key, err)
	}
}

// Growing moves the index, and names that are left behind move the rest.
func TestABlockIsKeptWhateverMovesAroundIt(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 0))
	now := second
	s := held(New(Options{MaxBuckets: 4096}), &now)
	const blocked = 100
	quick := func(i int) leakybucket.Charge { // empty in a second, long before its block is over
		c := blocking(fmt.Sprint("blocked", i), 1)
		c.Limit.Leak = 1000
		return c
	}
	for i := range blocked {
		block(t, s, quick(i))
	}
	now += 60 * second
	var ends [blocked]leakybucket.Instant
	for i := range blocked {
		ends[i] = block(t, s, quick(i)).BlockedUntil
		if ends[i] != now+3600*second {
			t.Fatalf("second block of bucket %d: got it until %d, want an hour from %d", i, ends[i], now)
		}
	}
	for i := range 3000 {
		c := charge(fmt.Sprint("other", i, strings.Repeat("x", rng.IntN(200))), 1)
		mustTake(t, s, c)
		if i%3 == 0 {
			reset(t, s, c)
		}
		if i%500 == 0 {
			now += 2 * second
			s.Shed()
			mustBeSound(t, s)
		}
	}
	now += 2 * second
	s.Shed()
	mustBeSound(t, s)
	if got := buckets(s); got != blocked || s.Evictions() != 0 {
		t.Errorf("buckets after all others are empty: got %d after %d evictions, want the %d that are blocked", got, s.Evictions(), blocked)
	}
	for i, end := range ends {
		if d := take(t, s, quick(i))[0]; d.BlockedUntil != end || d.Began {
			t.Errorf("bucket %d: got %+v, want it blocked until %d", i, d, end)
		}
	}
	now += 3600 * second
	if d := block(t, s, quick(0)); d.BlockedUntil != now+3600*second {
		t.Errorf("next block: got it until %d, want an hour from %d, of the last step", d.BlockedUntil, now)
	}
}

func TestAnEmptyBucketIsKeptIfItIsBlocked(t *testing.T) {
	now := second
	s := held(New(Options{MaxBuckets: 100}), &now)
	alone, beside := blocking("alone", 2), blocking("beside", 2)
	alone.Ceiling, beside.Ceiling = 1, 1
	for _, d := range append(take(t, s, alone), take(t, s, beside, charge("other", 1))[0]) {
		if !d.Began || d.Level != 0 || d.BlockedUntil != 61*second {
			t.Errorf("overflow of an empty bucket: got %+v, want a block of a minute", d)
		}
	}
	mustBeSound(t, s)
	if got := buckets(s); got != 2 {
		t.Errorf("buckets: got %d, want the 2 that are blocked", got)
	}
	for _, c := range []leakybucket.Charge{alone, beside} {
		if d := take(t, s, c)[0]; d.Began || d.BlockedUntil != 61*second {
			t.Errorf("%s: got %+v, want it blocked", c.Key, d)
		}
	}
	// A block that would end at once is nothing to keep.
	atOnce := charge("at once", 2)
	atOnce.Ceiling, atOnce.Block = 1, &leakybucket.Ladder{}
	if take(t, s, atOnce); buckets(s) != 2 {
		t.Errorf("buckets: got %d, want none made for a block of nothing", buckets(s))
	}
	// For a minute after its block the next one would be of the next step.
	for after, want := range map[leakybucket.Instant]int{second: 2, 60 * second: 2, 120*second - 1: 2, 120 * second: 0} {
		s := held(New(Options{MaxBuckets: 100}), &now)
		now = second
		take(t, s, alone)
		take(t, s, beside)
		now += after
		if s.Shed(); buckets(s) != want {
			t.Errorf("buckets %v after they were blocked: got %d, want %d", after.Sub(0), buckets(s), want)
		}
	}
}

func TestAResetGivesRoomBack(t *testing.T) {
	now := second
	s := held(New(Options{MaxBuckets: 64}), &now)
	for i := range 64 {
		block(t, s, blocking(fmt.Sprint("k", i), 1))
	}
	for i := range 64 {
		reset(t, s, charge(fmt.Sprint("k", i), 1))
		reset(t, s, charge(fmt.Sprint("k", i), 1))
		mustBeSound(t, s)
		if got := buckets(s); got != 63-i {
			t.Fatalf("buckets after %d resets: got %d, want %d", i+1, got, 63-i)
		}
	}
	if zones := s.Buckets(); len(zones) != 0 {
		t.Errorf("zones: got %v, want none", zones)
	}
	for i := range 64 {
		mustTake(t, s, charge(fmt.Sprint("new", i), 1))
	}
	reset(t, s, charge(strings.Repeat("x", 1<<17), 1)) // which it could not keep
	mustBeSound(t, s)
	if got := s.Evictions(); got != 0 {
		t.Errorf("evictions: got %d, want none, since a reset is none", got)
	}
}
