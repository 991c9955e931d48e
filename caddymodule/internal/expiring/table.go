// Package expiring has the one table whose entries expire. Its memory is bounded, and it
// needs no goroutine. It says when it is full: a [Map] takes no new entries then, and of a
// [Table] with groups the entry that ends first gives way. Begin with [Table].
package expiring

import (
	"container/heap"
	"sync"
	"sync/atomic"
	"time"
)

// forgotten is how many entries that are over a change removes at most. It adds one, so
// more are removed than added, and a change never holds the lock for long.
const forgotten = 8

// A Table is a bounded table whose entries expire, and may belong to groups. It is safe
// for concurrent use. An entry takes about 200 bytes, and a change takes logarithmic time.
type Table[K comparable, V any, G comparable] struct {
	most, part int
	group      func(V) G   // nil if there are no groups
	some       atomic.Bool // anything at all: in most tables, most of the time, nothing is
	mu         sync.RWMutex
	entries    map[K]*entry[K, V, G]
	all        byEnd[K, V, G]
	groups     map[G]*byEnd[K, V, G]
}

// A Map is a Table without groups.
type Map[K comparable, V any] = Table[K, V, struct{}]

type entry[K comparable, V any, G comparable] struct {
	key   K
	value V
	group G
	until time.Time
	at    [2]int // its places among all and in its group
}

// New returns an empty table of at most the given number of entries. While it is full, it
// takes no new ones.
func New[K comparable, V any](most int) *Map[K, V] {
	return &Map[K, V]{most: most, entries: make(map[K]*entry[K, V, struct{}])}
}

// NewShares returns an empty table of at most the given number of entries, of which a
// group has at most a part. A new entry takes the place of the one that ends first: of its
// group if that has its part, or else of all if the table is full.
func NewShares[K comparable, V any, G comparable](most, part int, group func(V) G) *Table[K, V, G] {
	return &Table[K, V, G]{
		most: most, part: part, group: group,
		entries: make(map[K]*entry[K, V, G]), groups: make(map[G]*byEnd[K, V, G]),
	}
}

// Empty reports, without a lock, whether the table has no entries.
func (t *Table[K, V, G]) Empty() bool { return !t.some.Load() }

// Get returns the value of a key, and false if there is none or it has expired. An empty
// table takes no lock.
func (t *Table[K, V, G]) Get(k K, now time.Time) (v V, found bool) {
	if t.Empty() {
		return v, false
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	if e := t.live(k, now); e != nil {
		return e.value, true
	}
	return v, false
}

// Put keeps a value until it expires. It returns false if the key is new and the table is
// full: the value is not kept then, or an entry of another group has given way.
func (t *Table[K, V, G]) Put(k K, v V, until, now time.Time) (room bool) {
	return t.Update(k, now, func(V, bool) (V, time.Time, bool) { return v, until, true })
}

// Update atomically replaces the value of a key by the result of f, which is called with
// the lock held. found reports whether there was a value, which keeps its group. If f
// returns false for keep, the key is deleted. Update returns what Put does.
func (t *Table[K, V, G]) Update(k K, now time.Time, f func(v V, found bool) (next V, until time.Time, keep bool)) (room bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forget(now)
	var v V
	e := t.live(k, now)
	if e != nil {
		v = e.value
	} else {
		t.remove(t.entries[k])
	}
	next, until, keep := f(v, e != nil)
	switch {
	case !keep:
		t.remove(e)
	case e == nil:
		return t.add(k, next, until)
	default:
		e.value, e.until = next, until
		heap.Fix(&t.all, e.at[0])
		if t.group != nil {
			heap.Fix(t.groups[e.group], e.at[1])
		}
	}
	return true
}

// forget removes some of what has expired. It must be called with the lock held.
func (t *Table[K, V, G]) forget(now time.Time) {
	for range forgotten {
		if len(t.all.list) == 0 || t.all.list[0].until.After(now) {
			return
		}
		t.remove(t.all.list[0])
	}
}

// Delete deletes a key, and reports whether it was there. It may have expired.
func (t *Table[K, V, G]) Delete(k K) (was bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entries[k]
	t.remove(e)
	return e != nil
}

// Len returns the number of entries, including expired ones that were not removed yet.
func (t *Table[K, V, G]) Len() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.entries)
}

// live returns the entry of a key, or nil if there is none or it has expired.
func (t *Table[K, V, G]) live(k K, now time.Time) *entry[K, V, G] {
	if e := t.entries[k]; e != nil && e.until.After(now) {
		return e
	}
	return nil
}

// add adds an entry, and reports whether there was room for it.
func (t *Table[K, V, G]) add(k K, v V, until time.Time) (room bool) {
	if room = len(t.entries) < t.most; !room && t.group == nil {
		return false
	}
	e := &entry[K, V, G]{key: k, value: v, until: until}
	if t.group != nil {
		e.group = t.group(e.value)
		if g := t.groups[e.group]; g != nil && len(g.list) >= t.part {
			t.remove(g.list[0])
			room = true
		} else if !room {
			t.remove(t.all.list[0])
		}
		if t.groups[e.group] == nil {
			t.groups[e.group] = &byEnd[K, V, G]{place: 1}
		}
		heap.Push(t.groups[e.group], e)
	}
	t.entries[e.key] = e
	heap.Push(&t.all, e)
	t.some.Store(true)
	return room
}

// remove removes an entry, which may be nil.
func (t *Table[K, V, G]) remove(e *entry[K, V, G]) {
	if e == nil {
		return
	}
	delete(t.entries, e.key)
	heap.Remove(&t.all, e.at[0])
	if g := t.groups[e.group]; g != nil {
		heap.Remove(g, e.at[1])
		if len(g.list) == 0 {
			delete(t.groups, e.group)
		}
	}
	t.some.Store(len(t.entries) > 0)
}

// byEnd is a heap of entries, which know their places in it. The one that ends first is
// the first.
type byEnd[K comparable, V any, G comparable] struct {
	list  []*entry[K, V, G]
	place int // which of an entry's places this heap is
}

func (h *byEnd[K, V, G]) Len() int           { return len(h.list) }
func (h *byEnd[K, V, G]) Less(i, j int) bool { return h.list[i].until.Before(h.list[j].until) }

func (h *byEnd[K, V, G]) Swap(i, j int) {
	h.list[i], h.list[j] = h.list[j], h.list[i]
	h.list[i].at[h.place], h.list[j].at[h.place] = i, j
}

// Push implements heap.Interface.
func (h *byEnd[K, V, G]) Push(x any) {
	e := x.(*entry[K, V, G])
	e.at[h.place] = len(h.list)
	h.list = append(h.list, e)
}

// Pop implements heap.Interface.
func (h *byEnd[K, V, G]) Pop() any {
	n := len(h.list) - 1
	e := h.list[n]
	h.list[n] = nil
	h.list = h.list[:n]
	return e
}
