// Package sketch summarizes streams of requests in bounded memory: a [Counter] finds the
// most frequent keys, a [Recent] those of the last minutes, and [Distinct] counts how many
// keys there are. Clients make up keys, so none of them keeps all. The package knows
// nothing of zones. Begin with Counter.
package sketch

import (
	"cmp"
	"slices"
)

// standard is how many keys are counted at once, if a counter does not say.
const standard = 128

// A Counter counts the most frequent keys of a stream, by the algorithm Space-Saving
// (Metwally, Agrawal, El Abbadi 2005): a new key takes the place of the least frequent
// one, and inherits its count as a possible error. Every key that makes up more than
// 1/Size of a stream is counted. The zero counter is empty. It is not safe for
// concurrent use.
type Counter[K comparable] struct {
	// Size is how many keys are counted at once. Zero means 128.
	Size int

	at      map[K]int // keys to indices of entries
	counts  []int
	entries []entry[K]
}

type entry[K comparable] struct {
	key   K
	error int // of the count
}

// A Key is a key of the stream, and how often it came at least.
type Key[K comparable] struct {
	Key     K
	AtLeast int
}

// Add counts a key that came so many times.
func (c *Counter[K]) Add(key K, times int) {
	if i, known := c.at[key]; known {
		c.counts[i] += times
		return
	}
	if c.at == nil {
		c.at = make(map[K]int)
	}
	if len(c.entries) < cmp.Or(c.Size, standard) {
		c.at[key] = len(c.entries)
		c.entries, c.counts = append(c.entries, entry[K]{key: key}), append(c.counts, times)
		return
	}
	i := slices.Index(c.counts, slices.Min(c.counts))
	e := &c.entries[i]
	delete(c.at, e.key)
	*e = entry[K]{key: key, error: c.counts[i]}
	c.counts[i] += times
	c.at[key] = i
}

// Top returns at most n keys that came most often, the first of them first.
func (c *Counter[K]) Top(n int) []Key[K] {
	keys := make([]Key[K], 0, len(c.entries))
	for i, e := range c.entries {
		keys = append(keys, Key[K]{e.key, c.counts[i] - e.error})
	}
	slices.SortStableFunc(keys, func(a, b Key[K]) int { return b.AtLeast - a.AtLeast })
	return keys[:min(n, len(keys))]
}
