package verify

import "time"

// A memory keeps keys until they end, and no more than most of them. It is not safe for
// concurrent use.
type memory[K comparable] struct {
	most int
	ends map[K]time.Time
}

func newMemory[K comparable](most int) memory[K] { return memory[K]{most, make(map[K]time.Time)} }

// left returns for how long a key is still kept.
func (m *memory[K]) left(k K, now time.Time) time.Duration { return max(0, m.ends[k].Sub(now)) }

// looked is how many keys a full memory looks at for one that has ended, so that a flood
// does not make it search all.
const looked = 8

// keep keeps a key for so long, and returns false if there is no room.
func (m *memory[K]) keep(k K, lasts time.Duration, now time.Time) (room bool) {
	if _, known := m.ends[k]; !known && len(m.ends) >= m.most {
		left := looked
		for other, end := range m.ends { // in random order
			if !end.After(now) {
				delete(m.ends, other)
				break
			}
			if left--; left == 0 {
				return false
			}
		}
	}
	m.ends[k] = now.Add(lasts)
	return true
}
