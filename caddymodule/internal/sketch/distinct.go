package sketch

import (
	"hash/maphash"
	"sync"

	"github.com/axiomhq/hyperloglog"
)

// seed keeps clients from choosing keys that meet.
var seed = maphash.MakeSeed()

// Hash returns the hash by which a [Distinct] knows a key.
func Hash[K comparable](key K) uint64 { return maphash.Comparable(seed, key) }

// Distinct estimates how many different keys were added, by a HyperLogLog with a standard
// error of 0.8 %; below a hundred keys, it is off by three at most. It is safe for concurrent
// use. The zero value is ready for use; the first key makes it take 16 KiB.
type Distinct struct {
	mu sync.Mutex
	of *hyperloglog.Sketch
}

// Reset forgets all keys.
func (d *Distinct) Reset() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.of = nil
}

// Add counts the key with a hash, if it is new.
func (d *Distinct) Add(hash uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.of == nil {
		d.of = hyperloglog.NewNoSparse() // the sparse form is exact for longer, and takes microseconds for each key
	}
	d.of.InsertHash(hash)
}

// Estimate returns how many different keys were added.
func (d *Distinct) Estimate() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.of == nil {
		return 0
	}
	return d.of.Estimate()
}
