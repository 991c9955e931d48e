package memstore

import (
	"encoding/binary"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

const (
	// longestName is how many bytes zone and key may have together. The two bytes for
	// the length of either can tell more.
	longestName = 1<<15 - 1

	// slotRoom is how many bytes of a name a slot holds. They take every address
	// and every digest.
	slotRoom = 32

	// blockedRoom is what is left of them beside a block.
	blockedRoom = 16
)

// The upper bits of slot.zone. The lower ones number a zone of the shard.
const (
	shadowBit  = 1 << 15
	blockedBit = 1 << 14 // the room ends with the block and when to forget the bucket
	digestBit  = 1 << 13 // the key is a digest, packed
	zoneMask   = 1<<13 - 1
)

// A slot keeps one bucket, in one cache line. A decision reads no other memory of
// the bucket, unless its name is longer than the room for it.
type slot struct {
	level float64
	at    leakybucket.Instant
	leak  float64
	hash  uint32 // the lower half of the hash of the name
	zone  uint16
	key   uint16 // length of the key as it is kept

	// room holds the key, if it has room for it, else where the name stands among
	// the names of the shard.
	room [slotRoom]byte
}

// inside reports whether the slot holds the key itself.
func (s *slot) inside() bool {
	if s.zone&blockedBit != 0 {
		return s.key <= blockedRoom
	}
	return s.key <= slotRoom
}

func (s *slot) offset() int     { return int(binary.LittleEndian.Uint64(s.room[:])) }
func (s *slot) setOffset(o int) { binary.LittleEndian.PutUint64(s.room[:], uint64(o)) }

// plain reports whether a decision needs nothing of the slot but its level: its bucket keeps no
// block, and was written with this leak, at now or before.
func (s *slot) plain(leak float64, now leakybucket.Instant) bool {
	return s.zone&blockedBit == 0 && s.leak == leak && s.at <= now
}

// found returns the level of a plain bucket, as [leakybucket.Charge.Judge] finds it.
func (s *slot) found(now leakybucket.Instant) float64 {
	return max(0, s.level-s.leak*(float64(now-s.at)/1e6))
}

const (
	stepBits   = 7
	latestStep = 1<<stepBits - 1

	// furthest is the latest end of a block that fits, some 2,000 years from 1970.
	furthest = leakybucket.Instant(1<<(63-stepBits) - 1)
)

// state goes by a pointer and by single fields, since a State is copied slowly.
func (s *slot) state(to *leakybucket.State) {
	to.Level, to.At, to.Leak, to.BlockedUntil, to.Step = s.level, s.at, s.leak, 0, 0
	if s.zone&blockedBit != 0 {
		block := int64(binary.LittleEndian.Uint64(s.room[blockedRoom:]))
		to.BlockedUntil, to.Step = leakybucket.Instant(block>>stepBits), uint8(block&latestStep)
	}
}

// setBlock sets what a slot with a block keeps besides: the end of the block above
// the seven bits of its step, and the instant after which to forget the bucket.
func (s *slot) setBlock(state *leakybucket.State, forget leakybucket.Instant) {
	until := max(-furthest, min(state.BlockedUntil, furthest))
	block := int64(until)<<stepBits | int64(min(state.Step, latestStep))
	binary.LittleEndian.PutUint64(s.room[blockedRoom:], uint64(block))
	binary.LittleEndian.PutUint64(s.room[blockedRoom+8:], uint64(forget))
}

// forget returns the instant after which the bucket may be forgotten.
func (s *slot) forget() leakybucket.Instant {
	if s.zone&blockedBit != 0 {
		return leakybucket.Instant(binary.LittleEndian.Uint64(s.room[blockedRoom+8:]))
	}
	return leakybucket.Limit{}.EmptyAt(leakybucket.State{Level: s.level, At: s.at, Leak: s.leak})
}

// Keys that are digests are kept as the bytes that they spell.
const digestBytes = 32

// packDigest returns the bytes that a digest spells in lower-case digits.
func packDigest(name string) (packed key.Digest, ok bool) {
	packed, ok = key.ParseDigest(name)
	return packed, ok && spells(name, packed[:])
}

// spells reports whether name is the digest of these bytes.
func spells(name string, packed []byte) bool {
	var room [128]byte
	return name == string(key.Digest(packed).Append(room[:0]))
}
