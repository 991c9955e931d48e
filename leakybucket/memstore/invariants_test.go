package memstore

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/testseed"
)

// mustBeSound goes through a whole store and fails the test at the first thing
// that must not be. Nothing else may use the store meanwhile.
func mustBeSound(t *testing.T, s *Store) {
	t.Helper()
	if used, most := s.room.used.Load(), s.room.most.Load(); used != int64(buckets(s)) || used > most {
		t.Fatalf("got %d buckets counted, want %d, and %d at most", used, buckets(s), most)
	}
	for i := range s.shards {
		sh := &s.shards[i]
		for _, check := range checks {
			if err := check(sh); err != nil {
				t.Fatalf("shard %d of %d, with %d buckets in %d slots: %v",
					i, len(s.shards), sh.count, len(sh.slots), err)
			}
		}
		for at := range sh.used() {
			c := sh.charge(at)
			hash := s.hasher.charge(c)
			if hash>>s.shift != uint64(i) || sh.slots[at].hash != uint32(hash) || sh.tags[at] != tagOf(hash) {
				t.Fatalf("bucket %q/%.40q: got it in shard %d, slot %+v with tag %x, want them by its hash %x", c.Zone, c.Key, i, sh.slots[at], sh.tags[at], hash)
			}
		}
	}
}

// used goes through the slots that keep a bucket.
func (sh *shard) used() func(yield func(int) bool) {
	return func(yield func(int) bool) {
		for at, tag := range sh.tags {
			if tag != 0 && !yield(at) {
				return
			}
		}
	}
}

// charge returns one that names the bucket of a slot.
func (sh *shard) charge(at int) *leakybucket.Charge {
	s := &sh.slots[at]
	zone, key := sh.spelled(s)
	return &leakybucket.Charge{Zone: zone, Key: string(key), Shadow: s.zone&shadowBit != 0}
}

// checkTable: every bucket is found where it is, and some slots are free.
func checkTable(sh *shard) error {
	if n := len(sh.tags); n != len(sh.slots) || 8*sh.count > 7*n {
		return fmt.Errorf("got %d tags and %d slots for %d buckets, want as many, at most seven eighths in use", n, len(sh.slots), sh.count)
	}
	count := 0
	for want := range sh.used() {
		count++
		for at := sh.home(sh.slots[want].hash); at != want; at = sh.after(at) {
			if sh.tags[at] == 0 {
				return fmt.Errorf("slot %d: got a gap at %d between it and its home, want none", want, at)
			}
		}
		if level := sh.slots[want].level; !(level >= 0) {
			return fmt.Errorf("slot %d: got level %v, want 0 or more", want, level)
		}
		if s := sh.slots[want].stateOf(); s.BlockedUntil == 0 && s.Step != 0 {
			return fmt.Errorf("slot %d: got step %d of no block, want 0", want, s.Step)
		}
	}
	if count != sh.count {
		return fmt.Errorf("got %d slots in use and %d buckets", count, sh.count)
	}
	for at, tag := range sh.tags {
		if tag == 0 && sh.slots[at] != (slot{}) {
			return fmt.Errorf("slot %d: got %+v where it is free, want nothing", at, sh.slots[at])
		}
	}
	return nil
}

// checkBounds: no bucket may be forgotten before what is known of its group.
func checkBounds(sh *shard) error {
	if want := (len(sh.tags) + groupSlots - 1) / groupSlots; len(sh.soonest) != want {
		return fmt.Errorf("got %d bounds, want %d", len(sh.soonest), want)
	}
	for at := range sh.used() {
		if forget, bound := sh.slots[at].forget(), sh.soonest[at/groupSlots]; forget < bound {
			return fmt.Errorf("slot %d: got a bucket that may be forgotten at %d, want none before %d", at, forget, bound)
		}
	}
	for i, soonest := range sh.soonest {
		if first := sh.room.soonest[sh.number].Load(); int64(soonest) < first {
			return fmt.Errorf("group %d: got a bound of %d, want none before %d, the shard's", i, soonest, first)
		}
	}
	return nil
}

// checkNames: no two buckets have one name, and each byte of names belongs to one
// bucket or is dead.
func checkNames(sh *shard) error {
	type span struct{ from, to int }
	var spans []span
	live := 0
	for at := range sh.used() {
		s := &sh.slots[at]
		if length := int(s.key); !s.inside() {
			spans = append(spans, span{s.offset(), s.offset() + length})
			live += length
		}
	}
	slices.SortFunc(spans, func(a, b span) int { return a.from + a.to - b.from - b.to })
	end := 0
	for _, s := range spans {
		if s.from < end || s.to > len(sh.names) {
			return fmt.Errorf("got a name in bytes %d to %d of %d, want it behind %d", s.from, s.to, len(sh.names), end)
		}
		end = s.to
	}
	if live+sh.dead != len(sh.names) {
		return fmt.Errorf("got %d bytes of names, %d live and %d dead", len(sh.names), live, sh.dead)
	}
	names := make(map[leakybucket.Charge]bool, sh.count)
	for at := range sh.used() {
		c := sh.charge(at)
		if names[*c] {
			return fmt.Errorf("bucket %s/%.40q: got it twice, want once", c.Zone, c.Key)
		}
		names[*c] = true
		if found, kept := sh.find(uint64(sh.tags[at])<<32|uint64(sh.slots[at].hash), c.Zone, c.Key, c.Shadow); !kept || found != at {
			return fmt.Errorf("bucket %s/%.40q: got it found %v in slot %d, want slot %d", c.Zone, c.Key, kept, found, at)
		}
	}
	return nil
}

// checkZones: the buckets of each zone are as many as are counted.
func checkZones(sh *shard) error {
	want := make(map[string]int)
	for at := range sh.used() {
		want[sh.charge(at).Zone]++
	}
	got := make(map[string]int)
	sh.addCounts(got)
	if !maps.Equal(got, want) {
		return fmt.Errorf("got zones counted as %v, want %v", got, want)
	}
	return nil
}

var checks = []func(*shard) error{checkTable, checkBounds, checkNames, checkZones}

// stateOf returns the state of a slot.
func (s slot) stateOf() (state leakybucket.State) {
	s.state(&state)
	return state
}

// TestLevels: the short form of a decision does as the long one.
func TestLevels(t *testing.T) {
	seed := testseed.Of(t)
	rng := rand.New(rand.NewPCG(seed, 0))
	for i := range 100_000 {
		c := leakybucket.Charge{Limit: leakybucket.Limit{Capacity: math.Exp(20 * rng.NormFloat64()), Leak: math.Exp(20 * rng.NormFloat64())}}
		s := leakybucket.State{Level: c.Limit.Capacity * 1.2 * rng.Float64(), At: 1e15, Leak: c.Limit.Leak}
		now := s.At + leakybucket.Instant(1e6*min(1e12, rng.ExpFloat64()*s.Level/s.Leak))
		c.Cost = max(0, c.Limit.Capacity-c.Limit.Level(s, now)) * []float64{0, 0.5, 1, 1 + 1e-9, 2, math.NaN(), math.Inf(1), -1}[rng.IntN(8)]
		if rng.IntN(8) == 0 {
			c.Ceiling = c.Limit.Capacity * rng.Float64()
		}
		sh := shard{slots: []slot{{level: s.Level, at: s.At, leak: s.Leak}}, soonest: []leakybucket.Instant{-never}}
		found, fits := sh.takePlain(0, c.Limit.WithCeiling(c.Ceiling), c.Cost, now)
		got, want := leakybucket.Decision{Level: found, At: now, Fits: fits, Poured: fits}, leakybucket.Decision{}
		c.Take(&s, now, &want)
		if got != want || sh.slots[0].stateOf() != s {
			t.Fatalf("seed %d, step %d, %+v: got %+v, %+v, want %+v, %+v", seed, i, c, got, sh.slots[0], want, s)
		}
	}
}
