package memstore

import (
	"math"
	"math/bits"
	"strings"
	"sync"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

const never = leakybucket.Instant(math.MaxInt64)

// A shard is the part of a store that is locked as one. It is an
// open-addressed index over segments of slots. Nothing in the index or the
// slots is a pointer, so the garbage collector has nothing to follow however
// many buckets there are, and growing copies the index only.
type shard struct {
	mu     sync.Mutex
	hasher hasher
	room   *room // of the store
	number int   // of the shard in it

	count int // buckets

	// index holds for each bucket the lower half of its hash, above the number
	// of its slot plus one; 0 is an empty place. Its length is a power of two.
	index []uint64

	segments []*segment // nil where all slots are free
	roomy    int        // no segment before this one has a free slot

	// soonest is, for each segment, an instant before which none of its
	// buckets may be forgotten. Pouring only moves that instant away, so the
	// bound needs no care on the common path and is made exact when it is due.
	soonest []leakybucket.Instant
	hand    int // the segment to look at next

	zones map[string]*int // how many buckets of each zone
}

// slot numbers count through the segments of a shard.
func (sh *shard) slot(at int) *slot {
	return &sh.segments[at/segmentSlots].slots[at%segmentSlots]
}

// find returns the number of the slot of the bucket that c names.
func (sh *shard) find(hash uint64, c *leakybucket.Charge) (at int, kept bool) {
	mask := len(sh.index) - 1
	if mask < 0 {
		return 0, false
	}
	for place := int(uint32(hash)) & mask; ; place = (place + 1) & mask {
		entry := sh.index[place]
		if entry == 0 {
			return 0, false
		}
		if uint32(entry>>32) != uint32(hash) {
			continue
		}
		at = int(uint32(entry)) - 1
		if sh.segments[at/segmentSlots].is(at%segmentSlots, c) {
			return at, true
		}
	}
}

// insert adds a bucket that is not there, for which a place is reserved.
func (sh *shard) insert(hash uint64, c *leakybucket.Charge, state *leakybucket.State) {
	if 4*(sh.count+1) > 3*len(sh.index) {
		sh.reindex(max(8, 2*len(sh.index)))
	}
	at := sh.freeSlot()
	sh.segments[at/segmentSlots].put(at%segmentSlots, c)
	sh.place(uint64(uint32(hash))<<32 | uint64(at+1))
	sh.write(at, c, state)
	sh.count++
	sh.countZone(c.Zone)
}

// place enters an entry into the index, which has room for it.
func (sh *shard) place(entry uint64) {
	mask := len(sh.index) - 1
	at := int(entry>>32) & mask
	for sh.index[at] != 0 {
		at = (at + 1) & mask
	}
	sh.index[at] = entry
}

func (sh *shard) reindex(length int) {
	old := sh.index
	sh.index = make([]uint64, length)
	for _, entry := range old {
		if entry != 0 {
			sh.place(entry)
		}
	}
}

// freeSlot returns a free slot, in the first segment that has one.
func (sh *shard) freeSlot() int {
	for ; sh.roomy < len(sh.segments); sh.roomy++ {
		g := sh.segments[sh.roomy]
		if g == nil {
			g = new(segment)
			sh.segments[sh.roomy] = g
		}
		if free := ^g.used; free != 0 {
			return sh.roomy*segmentSlots + bits.TrailingZeros64(free)
		}
	}
	sh.segments = append(sh.segments, new(segment))
	sh.soonest = append(sh.soonest, never)
	return sh.roomy * segmentSlots
}

// write sets the state of a kept bucket, and notes when it may be forgotten.
func (sh *shard) write(at int, c *leakybucket.Charge, state *leakybucket.State) {
	slot := sh.slot(at)
	slot.packed.set(state)
	slot.forget = c.Forget(state)
	if soonest := &sh.soonest[at/segmentSlots]; slot.forget < *soonest {
		*soonest = slot.forget
		if first := &sh.room.soonest[sh.number]; int64(slot.forget) < first.Load() {
			first.Store(int64(slot.forget))
		}
	}
}

// remove drops the bucket of a slot.
func (sh *shard) remove(at int) {
	g := sh.segments[at/segmentSlots]
	zone, key, shadow := g.name(at % segmentSlots)
	sh.unplace(uint64(uint32(sh.hasher.name(zone, key, shadow)))<<32 | uint64(at+1))
	if n := sh.zones[string(zone)]; *n > 1 {
		*n--
	} else {
		delete(sh.zones, string(zone))
	}
	g.free(at % segmentSlots)
	sh.room.release(1)
	sh.count--
	sh.roomy = min(sh.roomy, at/segmentSlots)
	if g.used == 0 {
		sh.segments[at/segmentSlots] = nil
		sh.soonest[at/segmentSlots] = never
	}
}

// unplace takes an entry out of the index and closes the gap: entries that
// were pushed over it move back, for as long as that brings them nearer to
// where their hash puts them.
func (sh *shard) unplace(entry uint64) {
	mask := len(sh.index) - 1
	gap := int(entry>>32) & mask
	for sh.index[gap] != entry {
		gap = (gap + 1) & mask
	}
	for at := (gap + 1) & mask; sh.index[at] != 0; at = (at + 1) & mask {
		home := int(sh.index[at]>>32) & mask
		if (at-home)&mask >= (at-gap)&mask {
			sh.index[gap] = sh.index[at]
			gap = at
		}
	}
	sh.index[gap] = 0
}

// forgetNext looks at the segment that the hand points to, drops what may be
// forgotten in it, and moves the hand on.
func (sh *shard) forgetNext(now leakybucket.Instant) {
	if len(sh.segments) == 0 {
		return
	}
	sh.hand = (sh.hand + 1) % len(sh.segments)
	if sh.soonest[sh.hand] <= now {
		sh.sweep(sh.hand, now)
	}
}

// sweep drops what may be forgotten in a segment.
func (sh *shard) sweep(segment int, now leakybucket.Instant) (forgotten int) {
	g, soonest := sh.segments[segment], never
	if g == nil {
		return 0
	}
	for used := g.used; used != 0; used &= used - 1 {
		i := bits.TrailingZeros64(used)
		if g.slots[i].forget <= now {
			sh.remove(segment*segmentSlots + i)
			forgotten++
		} else {
			soonest = min(soonest, g.slots[i].forget)
		}
	}
	sh.soonest[segment] = soonest
	return forgotten
}

// drop drops what may be forgotten in one segment, if there is one, else the
// bucket that may be soonest, unless others may be sooner. It reports whether it
// dropped anything.
func (sh *shard) drop(others leakybucket.Instant, clock func() leakybucket.Instant) bool {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	defer func() {
		first := never
		for _, soonest := range sh.soonest {
			first = min(first, soonest)
		}
		sh.room.soonest[sh.number].Store(int64(first))
	}()
	now := clock()
	for i, soonest := range sh.soonest {
		if soonest <= now && sh.sweep(i, now) > 0 {
			return true
		}
	}
	if sh.count == 0 {
		return false
	}
	at := sh.soonestOfSome()
	if sh.slot(at).forget > others {
		return false
	}
	sh.remove(at)
	sh.room.evictions.Add(1)
	return true
}

// soonestOfSome returns the bucket that may be forgotten soonest among those
// of the most promising segment. A bound may be out of date, so a few segments
// are looked at before one is believed.
func (sh *shard) soonestOfSome() (at int) {
	for range 4 {
		segment := 0
		for i, soonest := range sh.soonest {
			if soonest < sh.soonest[segment] {
				segment = i
			}
		}
		bound := sh.soonest[segment]
		at, sh.soonest[segment] = sh.segments[segment].soonest()
		at += segment * segmentSlots
		if sh.soonest[segment] == bound {
			break
		}
	}
	return at
}

// shed forgets what may be forgotten in the next segments, few enough that
// nobody waits long for the lock. It reports whether there are more segments.
func (sh *shard) shed(first int, now func() leakybucket.Instant) (next int, more bool) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	at := now()
	for next = first; next < min(first+64, len(sh.segments)); next++ {
		sh.forgetNext(at)
	}
	if next < len(sh.segments) {
		return next, true
	}
	sh.shrink()
	return 0, false
}

// shrink gives memory back that the shard has not needed for some time.
func (sh *shard) shrink() {
	for n := len(sh.segments); n > 0 && sh.segments[n-1] == nil; n-- {
		sh.segments, sh.soonest = sh.segments[:n-1], sh.soonest[:n-1]
	}
	sh.roomy = min(sh.roomy, len(sh.segments))
	if sh.count == 0 {
		sh.index, sh.segments, sh.soonest = nil, nil, nil
	} else if length := len(sh.index); length > 8 && sh.count < length/8 {
		sh.reindex(length / 2)
	}
}

func (sh *shard) countZone(zone string) {
	if n := sh.zones[zone]; n != nil {
		*n++
		return
	}
	if sh.zones == nil {
		sh.zones = make(map[string]*int)
	}
	one := 1
	sh.zones[strings.Clone(zone)] = &one
}

func (sh *shard) addCounts(total map[string]int) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for zone, n := range sh.zones {
		total[zone] += *n
	}
}
