package memstore

import (
	"math/bits"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

const (
	segmentSlots = 64

	// longestName is what the length fields of a slot can tell.
	longestName = 1<<15 - 1

	shadowBit = 1 << 15
)

// A slot keeps one bucket, in 48 bytes.
type slot struct {
	packed packed
	forget leakybucket.Instant

	// Where the name stands in the names of the segment: first the zone, whose
	// length has the shadow bit above it, then the key.
	name      uint32
	zone, key uint16
}

// packed is a state in 32 bytes.
type packed struct {
	level float64
	at    leakybucket.Instant
	leak  float64
	block int64 // the end of the block, above the 7 bits of its step
}

const (
	stepBits   = 7
	latestStep = 1<<stepBits - 1

	// furthest is the latest end of a block that fits, some 2,000 years from 1970.
	furthest = leakybucket.Instant(1<<(63-stepBits) - 1)
)

// set and state go by pointers and single fields: a State is copied slowly.
func (p *packed) set(s *leakybucket.State) {
	until := s.BlockedUntil
	if until > furthest || until < -furthest {
		until = max(-furthest, min(until, furthest))
	}
	p.level, p.at, p.leak = s.Level, s.At, s.Leak
	p.block = int64(until)<<stepBits | int64(min(s.Step, latestStep))
}

func (p *packed) state(s *leakybucket.State) {
	s.Level, s.At, s.Leak = p.level, p.at, p.leak
	s.BlockedUntil, s.Step = leakybucket.Instant(p.block>>stepBits), uint8(p.block&latestStep)
}

// A segment keeps up to 64 buckets and their names.
type segment struct {
	used  uint64 // a bit for each slot
	slots [segmentSlots]slot
	names []byte
	dead  int // bytes of names that no slot points at
}

func (g *segment) name(i int) (zone, key []byte, shadow bool) {
	s := &g.slots[i]
	middle := s.name + uint32(s.zone&^shadowBit)
	return g.names[s.name:middle], g.names[middle : middle+uint32(s.key)], s.zone&shadowBit != 0
}

// is reports whether slot i keeps the bucket that c names.
func (g *segment) is(i int, c *leakybucket.Charge) bool {
	zone, key, shadow := g.name(i)
	return string(key) == c.Key && string(zone) == c.Zone && shadow == c.Shadow
}

// put names slot i, whose state is not written yet.
func (g *segment) put(i int, c *leakybucket.Charge) {
	g.makeRoom(len(c.Zone) + len(c.Key))
	s := &g.slots[i]
	*s = slot{name: uint32(len(g.names)), zone: uint16(len(c.Zone)), key: uint16(len(c.Key))}
	if c.Shadow {
		s.zone |= shadowBit
	}
	g.names = append(append(g.names, c.Zone...), c.Key...)
	g.used |= 1 << i
}

func (g *segment) free(i int) {
	s := &g.slots[i]
	g.dead += int(s.zone&^shadowBit) + int(s.key)
	g.used &^= 1 << i
}

// makeRoom sees to it that n more bytes of names can be appended. When the names
// must move, the dead ones are left behind, and there is room for as many more
// of the usual length as there are slots, within reason, or for a few that will
// replace others.
func (g *segment) makeRoom(n int) {
	if len(g.names)+n <= cap(g.names) {
		return
	}
	const reason = 4096
	live, count := len(g.names)-g.dead+n, bits.OnesCount64(g.used)+1
	spare := max(live/8, live/count*(segmentSlots-count))
	moved := make([]byte, 0, live+min(reason, spare))
	for i := range segmentSlots {
		if g.used>>i&1 == 0 {
			continue
		}
		zone, key, _ := g.name(i)
		g.slots[i].name = uint32(len(moved))
		moved = append(append(moved, zone...), key...)
	}
	g.names, g.dead = moved, 0
}

// soonest returns the slot whose bucket may be forgotten first, and when. The
// segment must not be empty.
func (g *segment) soonest() (first int, forget leakybucket.Instant) {
	forget = never
	for i := range segmentSlots {
		if g.used>>i&1 != 0 && g.slots[i].forget <= forget {
			first, forget = i, g.slots[i].forget
		}
	}
	return first, forget
}
