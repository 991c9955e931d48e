package sketch

import (
	"hash/maphash"
	"math"
	"math/bits"
	"sync/atomic"
)

const (
	// mostExact is how many keys are counted exactly. Above that, the count is an
	// estimate, with a standard error of at most 1.2 %.
	mostExact = 512

	precision = 14
	registers = 1 << precision
)

// Distinct counts the different keys that were added, without locks. It is safe for
// concurrent use. The zero value is ready for use; the first key makes it take 24 KiB.
//
// It keeps the hashes of the first keys, and a HyperLogLog of all. A key that came before
// is only read, so a flood of one key, or of many, has no lock to wait for.
type Distinct struct{ of atomic.Pointer[hashes] }

type hashes struct {
	seed maphash.Seed // clients cannot choose keys that meet

	first [2 * mostExact]atomic.Uint64 // an open-addressed table of hashes; 0 is free
	exact atomic.Int64                 // hashes in it

	// ranks holds four registers of eight bits in each word.
	ranks [registers / 4]atomic.Uint32
}

// Reset forgets all keys.
func (d *Distinct) Reset() { d.of.Store(nil) }

// Add counts a key, if it is new.
func (d *Distinct) Add(key string) {
	c := d.begun()
	c.add(max(1, maphash.String(c.seed, key)))
}

// AddBytes is Add for a key that is no string yet.
func (d *Distinct) AddBytes(key []byte) {
	c := d.begun()
	c.add(max(1, maphash.Bytes(c.seed, key)))
}

func (d *Distinct) begun() *hashes {
	c := d.of.Load()
	for c == nil {
		d.of.CompareAndSwap(nil, &hashes{seed: maphash.MakeSeed()})
		c = d.of.Load()
	}
	return c
}

func (c *hashes) add(hash uint64) {
	if c.exact.Load() <= mostExact && !c.addExact(hash) {
		return
	}
	rank := uint32(bits.LeadingZeros64(hash<<precision|1<<(precision-1)) + 1)
	index := hash >> (64 - precision)
	word, shift := &c.ranks[index/4], index%4*8
	for {
		old := word.Load()
		if old>>shift&0xff >= rank || word.CompareAndSwap(old, old&^(0xff<<shift)|rank<<shift) {
			return
		}
	}
}

// addExact adds a hash to the table, and reports whether it is new. Callers that add at
// the same time may exceed mostExact, for which the table has room.
func (c *hashes) addExact(hash uint64) (added bool) {
	for at := hash % uint64(len(c.first)); ; at = (at + 1) % uint64(len(c.first)) {
		kept := c.first[at].Load()
		if kept == 0 && c.first[at].CompareAndSwap(0, hash) {
			c.exact.Add(1)
			return true
		}
		if kept == hash || c.first[at].Load() == hash {
			return false
		}
	}
}

// Estimate returns how many different keys were added. Above mostExact, it is that of
// HyperLogLog (Flajolet, Fusy, Gandouet, Meunier 2007).
func (d *Distinct) Estimate() uint64 {
	c := d.of.Load()
	if c == nil {
		return 0
	}
	if exact := c.exact.Load(); exact <= mostExact {
		return uint64(exact)
	}
	sum, empty := 0., 0.
	for i := range c.ranks {
		for word, n := c.ranks[i].Load(), 0; n < 4; word, n = word>>8, n+1 {
			rank := int(word & 0xff)
			if sum += math.Ldexp(1, -rank); rank == 0 {
				empty++
			}
		}
	}
	estimate := 0.7213 / (1 + 1.079/registers) * registers * registers / sum
	if empty > 0 && estimate < 3.5*registers { // where linear counting has no bias, and this has one of 2 %
		estimate = registers * math.Log(registers/empty)
	}
	return uint64(math.Round(estimate))
}
