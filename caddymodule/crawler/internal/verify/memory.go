package verify

import "time"

// A memory keeps values until they end, and no more than most of them. It is not safe for
// concurrent use.
type memory[K comparable, V any] struct {
	most    int
	entries map[K]entry[V]
}

type entry[V any] struct {
	value V
	until time.Time
}

func newMemory[K comparable, V any](most int) memory[K, V] {
	return memory[K, V]{most, make(map[K]entry[V])}
}

func (m *memory[K, V]) get(k K, now time.Time) (v V, found bool) {
	if e := m.entries[k]; e.until.After(now) {
		return e.value, true
	}
	return v, false
}

// looked is how many entries a full memory looks at for one that has ended, so that a flood
// does not make it search all.
const looked = 8

// put keeps a value, and returns false if there is no room.
func (m *memory[K, V]) put(k K, v V, until, now time.Time) (room bool) {
	if _, known := m.entries[k]; !known && len(m.entries) >= m.most {
		left := looked
		for other, e := range m.entries { // in random order
			if !e.until.After(now) {
				delete(m.entries, other)
				break
			}
			if left--; left == 0 {
				return false
			}
		}
	}
	m.entries[k] = entry[V]{v, until}
	return true
}
