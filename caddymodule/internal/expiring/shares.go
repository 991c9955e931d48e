package expiring

import (
	"container/heap"
	"sync"
	"sync/atomic"
	"time"
)

// Shares is a bounded table whose entries expire, like a Map, and belong to groups. A
// group has at most a part of the table. What ends first gives way to new entries: of the
// group if that has its part, else of all. It is safe for concurrent use. An entry takes
// about 200 bytes, and a Put takes logarithmic time.
type Shares[K, G comparable, V any] struct {
	most, part int
	some       atomic.Bool
	mu         sync.RWMutex
	entries    map[K]*shared[K, G, V]
	all        byEnd[K, G, V]
	groups     map[G]*byEnd[K, G, V]
}

type shared[K, G comparable, V any] struct {
	key   K
	group G
	value V
	until time.Time
	at    [2]int // its places among all and in its group
}

// NewShares returns an empty table of at most the given number of entries, of which a
// group has at most a part.
func NewShares[K, G comparable, V any](most, part int) *Shares[K, G, V] {
	return &Shares[K, G, V]{
		most: most, part: part,
		entries: make(map[K]*shared[K, G, V]), groups: make(map[G]*byEnd[K, G, V]),
	}
}

// Get returns the value of a key, and false if there is none or it has expired. An empty
// table takes no lock.
func (s *Shares[K, G, V]) Get(k K, now time.Time) (v V, found bool) {
	if !s.some.Load() {
		return v, false
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if e := s.entries[k]; e != nil && e.until.After(now) {
		return e.value, true
	}
	return v, false
}

// Update replaces the value of a key by the result of f, which is called with the lock
// held. A key that is there keeps its group. Update returns false if an entry had to give
// way before its end because the whole table was full.
func (s *Shares[K, G, V]) Update(k K, group G, now time.Time, f func(v V, found bool) (next V, until time.Time)) (room bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.all.list) > 0 && !s.all.list[0].until.After(now) {
		s.remove(s.all.list[0])
	}
	if e := s.entries[k]; e != nil {
		e.value, e.until = f(e.value, true)
		heap.Fix(&s.all, e.at[0])
		heap.Fix(s.groups[e.group], e.at[1])
		return true
	}
	room = true
	if g := s.groups[group]; g != nil && len(g.list) >= s.part {
		s.remove(g.list[0])
	} else if len(s.entries) >= s.most {
		s.remove(s.all.list[0])
		room = false
	}
	e := &shared[K, G, V]{key: k, group: group}
	e.value, e.until = f(e.value, false)
	g := s.groups[group]
	if g == nil {
		g = &byEnd[K, G, V]{place: 1}
		s.groups[group] = g
	}
	s.entries[k] = e
	heap.Push(&s.all, e)
	heap.Push(g, e)
	s.some.Store(true)
	return room
}

// Len returns the number of entries, including expired ones.
func (s *Shares[K, G, V]) Len() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.entries)
}

func (s *Shares[K, G, V]) remove(e *shared[K, G, V]) {
	delete(s.entries, e.key)
	heap.Remove(&s.all, e.at[0])
	g := s.groups[e.group]
	heap.Remove(g, e.at[1])
	if len(g.list) == 0 {
		delete(s.groups, e.group)
	}
	s.some.Store(len(s.entries) > 0)
}

// byEnd is a heap of entries, which know their places in it. The one that ends first is
// the first.
type byEnd[K, G comparable, V any] struct {
	list  []*shared[K, G, V]
	place int // which of an entry's places this heap is
}

func (h *byEnd[K, G, V]) Len() int           { return len(h.list) }
func (h *byEnd[K, G, V]) Less(i, j int) bool { return h.list[i].until.Before(h.list[j].until) }

func (h *byEnd[K, G, V]) Swap(i, j int) {
	h.list[i], h.list[j] = h.list[j], h.list[i]
	h.list[i].at[h.place], h.list[j].at[h.place] = i, j
}

// Push implements heap.Interface.
func (h *byEnd[K, G, V]) Push(x any) {
	e := x.(*shared[K, G, V])
	e.at[h.place] = len(h.list)
	h.list = append(h.list, e)
}

// Pop implements heap.Interface.
func (h *byEnd[K, G, V]) Pop() any {
	n := len(h.list) - 1
	e := h.list[n]
	h.list[n] = nil
	h.list = h.list[:n]
	return e
}
