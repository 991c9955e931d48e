// Package topk finds the most frequent keys of a stream in bounded memory.
package topk

import (
	"cmp"
	"slices"
)

// standard is how many keys are counted at once, if a Counter does not say.
const standard = 64

// A Counter counts the most frequent keys of a stream, by the algorithm Space-Saving
// (Metwally, Agrawal, El Abbadi 2005): a new key takes the place of the least frequent
// one, and inherits its count as a possible error. Every key that makes up more than
// 1/Size of a stream is counted. The zero Counter is empty. It is not safe for
// concurrent use.
type Counter struct {
	// Size is how many keys are counted at once. Zero means 64.
	Size int

	at      map[string]int // keys to indices of entries
	entries []entry
}

type entry struct {
	key          string
	count, error int
}

// A Key is a key of the stream, and how often it came at least.
type Key struct {
	Key     string
	AtLeast int
}

// Add counts a key.
func (c *Counter) Add(key string) {
	if i, known := c.at[key]; known {
		c.entries[i].count++
		return
	}
	if c.at == nil {
		c.at = make(map[string]int)
	}
	if len(c.entries) < cmp.Or(c.Size, standard) {
		c.at[key] = len(c.entries)
		c.entries = append(c.entries, entry{key: key, count: 1})
		return
	}
	least := 0
	for i := range c.entries {
		if c.entries[i].count < c.entries[least].count {
			least = i
		}
	}
	e := &c.entries[least]
	delete(c.at, e.key)
	*e = entry{key: key, count: e.count + 1, error: e.count}
	c.at[key] = least
}

// Top returns at most n keys that came most often, the first of them first.
func (c *Counter) Top(n int) []Key {
	keys := make([]Key, 0, len(c.entries))
	for _, e := range c.entries {
		keys = append(keys, Key{e.key, e.count - e.error})
	}
	slices.SortStableFunc(keys, func(a, b Key) int { return b.AtLeast - a.AtLeast })
	return keys[:min(n, len(keys))]
}
