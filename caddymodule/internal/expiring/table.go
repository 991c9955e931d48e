// Package expiring has the one table whose entries expire. Its memory is bounded, and it
// needs no goroutine. It takes no new entries when it is full. Begin with [Table].
package expiring

import (
	"container/list"
	"sync"
	"time"
)

// A Table is a bounded table whose entries expire, and may belong to groups. It is safe
// for concurrent use. An entry takes about 200 bytes.
//
// What is over is removed in the order in which entries were changed, so they all should
// last about as long.
type Table[K comparable, V any, G comparable] struct {
	most, part int
	group      func(V) G
	mu         sync.RWMutex
	entries    map[K]*list.Element
	order      list.List // of *entry, by when they were changed
	groups     map[G]int // how many entries they have
}

// A Map is a Table without groups.
type Map[K comparable, V any] = Table[K, V, struct{}]

type entry[K comparable, V any, G comparable] struct {
	key   K
	value V
	group G
	until time.Time
}

// New returns an empty table of at most the given number of entries.
func New[K comparable, V any](most int) *Map[K, V] {
	return NewShares[K](most, most, func(V) (none struct{}) { return none })
}

// NewShares returns an empty table of at most the given number of entries, of which a
// group has at most a part.
func NewShares[K comparable, V any, G comparable](most, part int, group func(V) G) *Table[K, V, G] {
	return &Table[K, V, G]{most: most, part: part, group: group, entries: make(map[K]*list.Element), groups: make(map[G]int)}
}

// Get returns the value of a key, and false if there is none or it has expired.
func (t *Table[K, V, G]) Get(k K, now time.Time) (v V, found bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if e := t.live(k, now); e != nil {
		return e.value, true
	}
	return v, false
}

// live returns the entry of a key, or nil if there is none or it has expired.
func (t *Table[K, V, G]) live(k K, now time.Time) *entry[K, V, G] {
	if at := t.entries[k]; at != nil {
		if e := at.Value.(*entry[K, V, G]); e.until.After(now) {
			return e
		}
	}
	return nil
}

// Put keeps a value until it expires. It returns false if the key is new and the table is
// full, or its group has its part: then the value is not kept.
func (t *Table[K, V, G]) Put(k K, v V, until, now time.Time) (kept bool) {
	return t.Update(k, now, func(V) (V, time.Time) { return v, until })
}

// Update atomically replaces the value of a key, or the zero value if there is none, by the
// result of f, which is called with the lock held. A value that there was keeps its group.
// Update returns what Put does.
func (t *Table[K, V, G]) Update(k K, now time.Time, f func(v V) (next V, until time.Time)) (kept bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for first := t.order.Front(); first != nil && !first.Value.(*entry[K, V, G]).until.After(now); first = t.order.Front() {
		t.remove(first)
	}
	if e := t.live(k, now); e != nil {
		e.value, e.until = f(e.value)
		t.order.MoveToBack(t.entries[k])
		return true
	}
	t.remove(t.entries[k])
	e := &entry[K, V, G]{key: k}
	e.value, e.until = f(e.value)
	e.group = t.group(e.value)
	if len(t.entries) >= t.most || t.groups[e.group] >= t.part {
		return false
	}
	t.groups[e.group]++
	t.entries[k] = t.order.PushBack(e)
	return true
}

// Delete deletes a key, and reports whether it was there. It may have expired.
func (t *Table[K, V, G]) Delete(k K) (was bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	at := t.entries[k]
	t.remove(at)
	return at != nil
}

// remove removes an entry, which may be nil.
func (t *Table[K, V, G]) remove(at *list.Element) {
	if at == nil {
		return
	}
	e := t.order.Remove(at).(*entry[K, V, G])
	delete(t.entries, e.key)
	if t.groups[e.group]--; t.groups[e.group] == 0 {
		delete(t.groups, e.group)
	}
}
