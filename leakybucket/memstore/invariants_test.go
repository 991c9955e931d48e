package memstore

import (
	"fmt"
	"math/bits"
	"slices"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
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
		for _, check := range []func(*shard) error{checkIndex, checkSegments, checkNames, checkZones} {
			if err := check(sh); err != nil {
				t.Fatalf("shard %d of %d, with %d buckets in %d segments: %v",
					i, len(s.shards), sh.count, len(sh.segments), err)
			}
		}
		for at := range sh.used() {
			zone, key, shadow := sh.segments[at/segmentSlots].name(at % segmentSlots)
			if hash := s.hasher.name(zone, key, shadow); hash>>s.shift != uint64(i) {
				t.Fatalf("bucket %q/%.40q: got it in shard %d, want shard %d", zone, key, i, hash>>s.shift)
			}
		}
	}
}

// used goes through the slots that keep a bucket.
func (sh *shard) used() func(yield func(int) bool) {
	return func(yield func(int) bool) {
		for i, g := range sh.segments {
			for j := range segmentSlots {
				if g != nil && g.used>>j&1 != 0 && !yield(i*segmentSlots+j) {
					return
				}
			}
		}
	}
}

// charge returns one that names the bucket of a slot.
func (sh *shard) charge(at int) *leakybucket.Charge {
	zone, key, shadow := sh.segments[at/segmentSlots].name(at % segmentSlots)
	return &leakybucket.Charge{Zone: string(zone), Key: string(key), Shadow: shadow}
}

// checkIndex: the index has one entry for each bucket, where it is found.
func checkIndex(sh *shard) error {
	if n := len(sh.index); n&(n-1) != 0 || 4*sh.count > 3*n {
		return fmt.Errorf("got an index of %d places for %d buckets, want a power of two, at most three quarters full", n, sh.count)
	}
	seen := make([]uint64, len(sh.segments))
	entries := 0
	for place, entry := range sh.index {
		if entry == 0 {
			continue
		}
		entries++
		at := int(uint32(entry)) - 1
		if at < 0 || at >= len(sh.segments)*segmentSlots || sh.segments[at/segmentSlots] == nil {
			return fmt.Errorf("place %d: got an entry for slot %d, want one that is there", place, at)
		}
		if seen[at/segmentSlots]>>(at%segmentSlots)&1 != 0 {
			return fmt.Errorf("place %d: got a second entry for slot %d, want one", place, at)
		}
		seen[at/segmentSlots] |= 1 << (at % segmentSlots)
		mask := len(sh.index) - 1
		for p := int(entry>>32) & mask; p != place; p = (p + 1) & mask {
			if sh.index[p] == 0 {
				return fmt.Errorf("place %d: got a gap at %d between it and where its hash puts it, want none", place, p)
			}
		}
	}
	if entries != sh.count {
		return fmt.Errorf("got %d entries in the index for %d buckets, want as many", entries, sh.count)
	}
	for i, g := range sh.segments {
		if g != nil && g.used != seen[i] {
			return fmt.Errorf("segment %d: got entries for slots %b, want %b, those in use", i, seen[i], g.used)
		}
	}
	for want := range sh.used() {
		c := sh.charge(want)
		if at, kept := sh.find(sh.hasher.charge(c), c); !kept || at != want {
			return fmt.Errorf("bucket %s/%.40q: got it found %v in slot %d, want slot %d", c.Zone, c.Key, kept, at, want)
		}
	}
	return nil
}

// checkSegments: what is known of the segments is true of their slots.
func checkSegments(sh *shard) error {
	if len(sh.soonest) != len(sh.segments) || sh.roomy > len(sh.segments) {
		return fmt.Errorf("got %d segments, %d bounds and room from segment %d on", len(sh.segments), len(sh.soonest), sh.roomy)
	}
	count := 0
	for i, g := range sh.segments {
		if i < sh.roomy && (g == nil || ^g.used != 0) {
			return fmt.Errorf("segment %d: got a free slot before segment %d, want none", i, sh.roomy)
		}
		if g == nil {
			if sh.soonest[i] != never {
				return fmt.Errorf("segment %d: got a bound of %d for no buckets, want never", i, sh.soonest[i])
			}
			continue
		}
		if g.used == 0 {
			return fmt.Errorf("segment %d: got it kept with nothing in it, want nil", i)
		}
		count += bits.OnesCount64(g.used)
		if _, forget := g.soonest(); forget < sh.soonest[i] {
			return fmt.Errorf("segment %d: got a bucket that may be forgotten at %d, want none before %d", i, forget, sh.soonest[i])
		}
	}
	if count != sh.count {
		return fmt.Errorf("got %d slots in use and %d buckets", count, sh.count)
	}
	for i, soonest := range sh.soonest {
		if first := sh.room.soonest[sh.number].Load(); int64(soonest) < first {
			return fmt.Errorf("segment %d: got a bound of %d, want none before %d, the shard's", i, soonest, first)
		}
	}
	for at := range sh.used() {
		if level := sh.slot(at).packed.level; !(level >= 0) {
			return fmt.Errorf("slot %d: got level %v, want 0 or more", at, level)
		}
		if s := sh.slot(at).stateOf(); s.BlockedUntil == 0 && s.Step != 0 {
			return fmt.Errorf("slot %d: got step %d of no block, want 0", at, s.Step)
		}
	}
	return nil
}

// checkNames: each byte of names belongs to one bucket or is dead.
func checkNames(sh *shard) error {
	names := make(map[leakybucket.Charge]bool, sh.count)
	for at := range sh.used() {
		c := *sh.charge(at)
		if names[c] {
			return fmt.Errorf("bucket %s/%.40q: got it twice, want once", c.Zone, c.Key)
		}
		names[c] = true
	}
	type span struct{ from, to int }
	for i, g := range sh.segments {
		if g == nil {
			continue
		}
		var spans []span
		live := 0
		for j := range segmentSlots {
			if s := &g.slots[j]; g.used>>j&1 != 0 {
				length := int(s.zone&^shadowBit) + int(s.key)
				spans = append(spans, span{int(s.name), int(s.name) + length})
				live += length
			}
		}
		slices.SortFunc(spans, func(a, b span) int { return a.from + a.to - b.from - b.to })
		end := 0
		for _, s := range spans {
			if s.from < end || s.to > len(g.names) {
				return fmt.Errorf("segment %d: got a name in bytes %d to %d of %d, want it behind %d", i, s.from, s.to, len(g.names), end)
			}
			end = s.to
		}
		if live+g.dead != len(g.names) {
			return fmt.Errorf("segment %d: got %d bytes of names, %d live and %d dead", i, len(g.names), live, g.dead)
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
	if len(sh.zones) != len(want) {
		return fmt.Errorf("got %d zones counted, want %d", len(sh.zones), len(want))
	}
	for zone, n := range want {
		if got := sh.zones[zone]; got == nil || *got != n {
			return fmt.Errorf("zone %q: got %v buckets counted, want %d", zone, got, n)
		}
	}
	return nil
}

// A checker that finds nothing wrong proves nothing.
func TestTheInvariantsAreChecked(t *testing.T) {
	for what, harm := range map[string]func(sh *shard){
		"an entry is lost":            func(sh *shard) { sh.index[slices.IndexFunc(sh.index, nonzero)] = 0 },
		"an entry is there twice":     func(sh *shard) { sh.place(sh.index[slices.IndexFunc(sh.index, nonzero)]) },
		"an entry is misplaced":       func(sh *shard) { i := slices.IndexFunc(sh.index, nonzero); sh.index[i] ^= 1 << 33 },
		"a slot is freed alone":       func(sh *shard) { sh.segments[0].free(3) },
		"a bucket is miscounted":      func(sh *shard) { sh.count-- },
		"a bound is too late":         func(sh *shard) { sh.soonest[0] = sh.slot(0).forget + 1 },
		"room is overlooked":          func(sh *shard) { sh.roomy = 1 },
		"a name is shared":            func(sh *shard) { sh.slot(1).name = sh.slot(0).name },
		"names overlap":               func(sh *shard) { sh.slot(0).key++ },
		"dead bytes are miscounted":   func(sh *shard) { sh.segments[0].dead++ },
		"a zone is miscounted":        func(sh *shard) { *sh.zones["zone"]++ },
		"a zone is counted no more":   func(sh *shard) { delete(sh.zones, "zone") },
		"a level is no number":        func(sh *shard) { l := &sh.slot(0).packed.level; *l = *l / 0 * 0 },
		"a step is of no block":       func(sh *shard) { sh.slot(2).packed.block |= 1 },
		"a shard's bound is too late": func(sh *shard) { sh.room.soonest[0].Add(1) },
	} {
		s := held(New(Options{MaxBuckets: 100}), new(leakybucket.Instant))
		for i := range 5 {
			mustTake(t, s, charge(fmt.Sprint("k", i), float64(i+1)))
		}
		mustBeSound(t, s)
		sh := &s.shards[0]
		harm(sh)
		found := false
		for _, check := range []func(*shard) error{checkIndex, checkSegments, checkNames, checkZones} {
			found = found || check(sh) != nil
		}
		if !found {
			t.Errorf("%s: got no complaint, want one", what)
		}
	}
}

func nonzero(entry uint64) bool { return entry != 0 }

// stateOf returns the state of a slot.
func (s slot) stateOf() (state leakybucket.State) {
	s.packed.state(&state)
	return state
}
