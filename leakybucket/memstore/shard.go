package memstore

import (
	"bytes"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/key"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
)

const (
	never = leakybucket.Instant(math.MaxInt64)

	// rests is how long a bucket that may be forgotten stays in a store that is less than half full,
	// in microseconds: most clients come back soon, and then find its slot.
	rests = 60_000_000

	// groupSlots are looked at together when something is to be forgotten.
	groupSlots = 64

	smallestTable = 8
	unequalFrom   = 64 // slots; one of the lengths that a table has when it grows

	// spelledZone stands for all zones for which a shard has no number left. They
	// are spelled out before the key, with a slash between.
	spelledZone = 0
	mostZones   = zoneMask
)

var slash = []byte{'/'}

// A shard is the part of a store that is locked as one. It is an open-addressed
// table with linear probing. A tag of one byte stands for each slot, so that
// probing reads the tags alone, of which a cache holds many. Nothing in the table
// is a pointer, so the garbage collector has nothing to follow however many
// buckets there are.
//
// bench/README.md has the layouts that were measured and lost.
type shard struct {
	// What takes write, and most of what they read, is in two cache lines.
	mu      sync.Mutex
	decided leakybucket.Instant // the last one: those of decisions have the order of the lock
	changes uint64              // writes and removals, for snapshots
	slots   []slot
	count   int // buckets
	hand    int // the group to look at next

	tags   []uint8     // a part of the hash of each slot; 0 where that is free
	zones  []zoneCount // by number; the first is spelledZone
	room   *room       // of the store
	number int         // of the shard in it

	// soonest is, for each group of slots, an instant before which none of its
	// buckets may be forgotten. Pouring only moves that instant away, so the
	// bound needs no care on the common path and is made exact when it is due.
	soonest []leakybucket.Instant

	names []byte // of the slots that have no room for theirs
	dead  int    // bytes of names that no slot points at

	_ [8]byte // shards share no cache line
}

// A zoneCount is a zone with buckets in a shard. If there are none left, its
// number is free.
type zoneCount struct {
	name    string
	buckets int
}

func tagOf(hash uint64) uint8 { return max(1, uint8(hash>>32)) }

// home returns where the bucket of a hash is if no other is in its way. The order
// of homes is that of the hashes, so a table is rebuilt from one end to the other.
func (sh *shard) home(hash uint32) int { return int(uint64(hash) * uint64(len(sh.tags)) >> 32) }

func (sh *shard) after(at int) int {
	if at++; at == len(sh.tags) {
		return 0
	}
	return at
}

// distance returns how far to is behind from.
func (sh *shard) distance(from, to int) int {
	if to < from {
		to += len(sh.tags)
	}
	return to - from
}

// find returns the slot of a bucket.
func (sh *shard) find(hash uint64, zone, key string, shadow bool) (at int, kept bool) {
	if len(sh.tags) == 0 {
		return 0, false
	}
	tag, low := tagOf(hash), uint32(hash)
	for at = sh.home(low); ; at = sh.after(at) {
		switch sh.tags[at] {
		case tag:
			if s := &sh.slots[at]; s.hash == low && sh.is(s, zone, key, shadow) {
				return at, true
			}
		case 0:
			return 0, false
		}
	}
}

// is reports whether a slot keeps the bucket of these names.
func (sh *shard) is(s *slot, zone, key string, shadow bool) bool {
	if s.zone&^zoneMask == 0 && s.zone != spelledZone && s.key <= slotRoom { // most are like that
		return string(s.room[:s.key]) == key && sh.zones[s.zone].name == zone && !shadow
	}
	named, kept := sh.name(s)
	switch {
	case named != zone || (s.zone&shadowBit != 0) != shadow:
		return false
	case s.zone&digestBit != 0:
		return spells(key, kept)
	}
	return string(kept) == key
}

// name returns the zone of a slot and its key as it is kept: a digest is packed.
func (sh *shard) name(s *slot) (zone string, key []byte) {
	if key = s.room[:]; !s.inside() {
		key = sh.names[s.offset():]
	}
	if key = key[:s.key]; s.zone&zoneMask != spelledZone {
		return sh.zones[s.zone&zoneMask].name, key
	}
	spelled, key, _ := bytes.Cut(key, slash)
	return string(spelled), key
}

// spelled returns the zone of a slot and its key as callers write it.
func (sh *shard) spelled(s *slot) (zone string, name []byte) {
	if zone, name = sh.name(s); s.zone&digestBit != 0 {
		name = key.Digest(name).Append(nil)
	}
	return zone, name
}

// insert adds a bucket that is not there, for which a place is reserved.
// It may be forgotten after an instant that the caller knows already.
func (sh *shard) insert(hash uint64, c *leakybucket.Charge, state *leakybucket.State, now, forget leakybucket.Instant) {
	if 8*(sh.count+1) > 7*len(sh.tags) {
		sh.makeFree(now)
	}
	sh.forgetNext(now)
	at := sh.home(uint32(hash))
	for sh.tags[at] != 0 {
		at = sh.after(at)
	}
	s := &sh.slots[at]
	sh.setName(s, c)
	s.hash = uint32(hash)
	sh.tags[at] = tagOf(hash)
	sh.count++
	if state.BlockedUntil != 0 || state.Leak == 0 {
		sh.write(at, c, state)
		return
	}
	sh.changes++
	s.level, s.at, s.leak = state.Level, state.At, state.Leak
	sh.due(at, forget)
}

// makeFree builds a full table anew without what has rested. It grows unless half of what it may
// hold is free then, so that each new bucket pays for two or three slots.
func (sh *shard) makeFree(now leakybucket.Instant) {
	length, rested := len(sh.tags), sh.rested(now)
	for at, tag := range sh.tags {
		if tag != 0 && sh.soonest[at/groupSlots] <= rested && sh.slots[at].forget() <= rested {
			sh.leave(at)
		}
	}
	if 16*sh.count >= 7*length {
		length = sh.longer()
	}
	sh.resize(length)
}

// longer returns the next length of the table, half as much again. Shards fill at the
// same pace, so they grow from different lengths on, lest all be half empty at once.
func (sh *shard) longer() int {
	if length := len(sh.tags); length != unequalFrom {
		return max(smallestTable, (length*3/2+7)&^7)
	}
	return unequalFrom + 8 + 8*(sh.number%4)
}

// setName names a slot that keeps no bucket yet.
func (sh *shard) setName(s *slot, c *leakybucket.Charge) {
	s.zone = sh.addToZone(c.Zone)
	name := c.Key
	if s.zone == spelledZone {
		name = c.Zone + string(slash) + c.Key
	}
	packed, ok := packDigest(name)
	switch s.key = uint16(len(name)); {
	case ok:
		s.zone |= digestBit
		s.key, s.room = digestBytes, packed
	case len(name) <= slotRoom:
		copy(s.room[:], name)
	default:
		s.setOffset(sh.addName(name))
	}
	if c.Shadow {
		s.zone |= shadowBit
	}
}

// write sets the state of a kept bucket, and notes when it may be forgotten.
func (sh *shard) write(at int, c *leakybucket.Charge, state *leakybucket.State) {
	s := &sh.slots[at]
	sh.changes++
	if s.zone&blockedBit != 0 || state.BlockedUntil != 0 || state.Leak == 0 {
		sh.writeBlocked(at, c, state)
		return
	}
	// Most writes are pours, and after them a bucket may be forgotten later. Two
	// microseconds are more than the roundings of both instants.
	later := state.Leak == s.leak &&
		state.Level-s.level+s.leak*(float64(state.At-s.at)*1e-6) > s.leak*2e-6
	s.level, s.at, s.leak = state.Level, state.At, state.Leak
	if !later {
		sh.due(at, s.forget())
	}
}

// takePlain takes a cost in the slot of a plain bucket if it fits: what most decisions are. found is
// the level before it. Slots may move.
func (sh *shard) takePlain(at int, limit leakybucket.Limit, cost float64, now leakybucket.Instant) (found float64, fits bool) {
	found = sh.slots[at].found(now)
	if fits = limit.Fits(found, cost); fits {
		sh.pour(at, found, cost, now)
	}
	if found == 0 {
		sh.forgetNext(now)
	}
	return found, fits
}

// pour pours a cost into a plain bucket that was found at a level.
func (sh *shard) pour(at int, found, cost float64, now leakybucket.Instant) {
	s := &sh.slots[at]
	s.level, s.at = found+cost, now
	sh.changes++
	if cost <= s.leak*2e-6 { // otherwise it may be forgotten later than before, see write
		sh.due(at, s.forget())
	}
}

// writeBlocked is write for what only a slot with room for a block can keep.
func (sh *shard) writeBlocked(at int, c *leakybucket.Charge, state *leakybucket.State) {
	s := &sh.slots[at]
	if s.zone&blockedBit == 0 {
		if key := int(s.key); s.inside() && key > blockedRoom {
			s.setOffset(sh.addName(string(s.room[:key])))
		}
		s.zone |= blockedBit
	}
	s.level, s.at, s.leak = state.Level, state.At, state.Leak
	forget := store.Expiry(c, state)
	s.setBlock(state, forget)
	sh.room.blocks.add(c, state.BlockedUntil)
	sh.due(at, forget)
}

// due notes that the bucket of a slot may be forgotten at an instant.
func (sh *shard) due(at int, forget leakybucket.Instant) {
	soonest := &sh.soonest[at/groupSlots]
	if forget >= *soonest {
		return
	}
	*soonest = forget
	if first := &sh.room.soonest[sh.number]; int64(forget) < first.Load() {
		first.Store(int64(forget))
	}
}

// remove drops the bucket of a slot, and closes the gap: buckets that were pushed
// over it move back, for as long as that brings them nearer to their homes. So
// other buckets may be in the slot afterwards, and in those behind it.
func (sh *shard) remove(at int) {
	sh.leave(at)
	gap := at
	for at = sh.after(at); sh.tags[at] != 0; at = sh.after(at) {
		home := sh.home(sh.slots[at].hash)
		if sh.distance(home, at) < sh.distance(gap, at) {
			continue
		}
		sh.tags[gap], sh.slots[gap] = sh.tags[at], sh.slots[at]
		if gap/groupSlots != at/groupSlots {
			sh.due(gap, sh.slots[gap].forget())
		}
		gap = at
	}
	sh.tags[gap], sh.slots[gap] = 0, slot{}
}

// leave drops the bucket of a slot, and leaves a gap.
func (sh *shard) leave(at int) {
	s := &sh.slots[at]
	sh.zones[s.zone&zoneMask].buckets--
	if !s.inside() {
		sh.dead += int(s.key)
	}
	sh.room.release(1)
	sh.count--
	sh.changes++
	sh.tags[at] = 0
}

// resize gives the table another length, which must leave some slots free.
func (sh *shard) resize(length int) {
	tags, slots := sh.tags, sh.slots
	sh.tags, sh.slots = make([]uint8, length), make([]slot, length)
	sh.soonest = slices.Repeat([]leakybucket.Instant{never}, (length+groupSlots-1)/groupSlots)
	for i, tag := range tags {
		if tag == 0 {
			continue
		}
		at := sh.home(slots[i].hash)
		for sh.tags[at] != 0 {
			at = sh.after(at)
		}
		sh.tags[at], sh.slots[at] = tag, slots[i]
		soonest := &sh.soonest[at/groupSlots]
		*soonest = min(*soonest, slots[i].forget())
	}
}

// addName adds a name, and returns where it stands.
func (sh *shard) addName(name string) int {
	if n := len(name); len(sh.names)+n > cap(sh.names) {
		sh.moveNames(max(n, (len(sh.names)-sh.dead)/4, len(sh.tags))) // which pays for a look at all slots
	}
	sh.names = append(sh.names, name...)
	return len(sh.names) - len(name)
}

// moveNames leaves the dead names behind, and makes room for so many bytes more.
func (sh *shard) moveNames(more int) {
	moved := make([]byte, 0, len(sh.names)-sh.dead+more)
	for at, tag := range sh.tags {
		if s := &sh.slots[at]; tag != 0 && !s.inside() {
			o := s.offset()
			s.setOffset(len(moved))
			moved = append(moved, sh.names[o:o+int(s.key)]...)
		}
	}
	sh.names, sh.dead = moved, 0
}

// forgetNext looks at the group that the hand points to, drops what has rested in it, and moves
// the hand on. Slots may move. Each insert calls it, and most takes of an empty bucket: so those
// that nobody asks for disappear.
func (sh *shard) forgetNext(now leakybucket.Instant) {
	if sh.hand++; sh.hand >= len(sh.soonest) {
		sh.hand = 0
	}
	if rested := sh.rested(now); sh.soonest[sh.hand] <= rested {
		sh.sweep(sh.hand, rested)
	}
}

// rested returns the instant by which a bucket must have been empty to be dropped now.
func (sh *shard) rested(now leakybucket.Instant) leakybucket.Instant {
	if 2*sh.room.used.Load() < sh.room.most.Load() {
		now -= rests
	}
	return now
}

// sweep drops what may be forgotten in a group, and returns which of the others may be first.
func (sh *shard) sweep(group int, now leakybucket.Instant) (first, forgotten int) {
	soonest := never
	for at := group * groupSlots; at < min((group+1)*groupSlots, len(sh.tags)); {
		forget := never
		if sh.tags[at] != 0 {
			forget = sh.slots[at].forget()
		}
		if forget <= now {
			sh.remove(at) // and look at what is there now
			forgotten++
			continue
		}
		if forget < soonest {
			first, soonest = at, forget
		}
		at++
	}
	sh.soonest[group] = soonest
	return first, forgotten
}

// drop drops what may be forgotten in one group, if there is one, else the
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
		if soonest <= now {
			if _, forgotten := sh.sweep(i, now); forgotten > 0 {
				return true
			}
		}
	}
	if sh.count == 0 {
		sh.shrink()
		return false
	}
	at := sh.first()
	if sh.slots[at].forget() > others {
		return false
	}
	sh.remove(at)
	sh.room.evictions.Add(1)
	return true
}

// first returns the bucket that may be forgotten soonest. A bound may be out of date, so that of
// the most promising group is made exact until it was. The shard must not be empty.
func (sh *shard) first() (at int) {
	for {
		group := slices.Index(sh.soonest, slices.Min(sh.soonest))
		bound := sh.soonest[group]
		if at, _ = sh.sweep(group, -never); sh.soonest[group] == bound {
			return at
		}
	}
}

// shed forgets what may be forgotten in the next groups, few enough that nobody
// waits long for the lock. It reports whether there are more groups.
func (sh *shard) shed(first int, now func() leakybucket.Instant) (next int, more bool) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	at := now()
	for next = first; next < min(first+64, len(sh.soonest)); next++ {
		if sh.soonest[next] <= at {
			sh.sweep(next, at)
		}
	}
	if next < len(sh.soonest) {
		return next, true
	}
	sh.shrink()
	return 0, false
}

// shrink gives memory back that the shard has not needed for some time.
func (sh *shard) shrink() {
	if sh.count == 0 {
		sh.tags, sh.slots, sh.soonest, sh.zones, sh.names, sh.dead = nil, nil, nil, nil, nil, 0
	} else if length := len(sh.tags); length > smallestTable && sh.count < length/4 {
		sh.resize(max(smallestTable, (sh.count*3/2+7)&^7))
	}
	if 2*sh.dead > len(sh.names) {
		sh.moveNames(0)
	}
}

// addToZone counts a new bucket of a zone and returns the number of the zone.
func (sh *shard) addToZone(zone string) uint16 {
	free := spelledZone
	for i := 1; i < len(sh.zones); i++ {
		switch {
		case sh.zones[i].name == zone && sh.zones[i].buckets > 0:
			sh.zones[i].buckets++
			return uint16(i)
		case sh.zones[i].buckets == 0:
			free = i
		}
	}
	if len(sh.zones) == 0 {
		sh.zones = make([]zoneCount, 1, 4)
	}
	if free == spelledZone && len(sh.zones) <= mostZones {
		free = len(sh.zones)
		sh.zones = append(sh.zones, zoneCount{})
	}
	if free != spelledZone {
		sh.zones[free].name = strings.Clone(zone)
	}
	sh.zones[free].buckets++
	return uint16(free)
}

// addCounts adds how many buckets of each zone there are.
func (sh *shard) addCounts(total map[string]int) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for _, zone := range sh.zones[min(1, len(sh.zones)):] {
		if zone.buckets > 0 {
			total[zone.name] += zone.buckets
		}
	}
	if len(sh.zones) == 0 || sh.zones[spelledZone].buckets == 0 {
		return
	}
	for i, tag := range sh.tags {
		if s := &sh.slots[i]; tag != 0 && s.zone&zoneMask == spelledZone {
			zone, _ := sh.name(s)
			total[zone]++
		}
	}
}
