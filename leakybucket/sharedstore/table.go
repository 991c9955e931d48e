package sharedstore

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A table is a bounded map of buckets whose entries end. While it is full it takes no new
// ones. It is safe for concurrent use.
type table[V any] struct {
	most    int
	some    atomic.Bool // anything at all: most of the time nothing is, and nobody takes the lock
	mu      sync.RWMutex
	entries map[bucket]ending[V]
	swept   time.Time // when the full table was last searched for entries that have ended
}

type ending[V any] struct {
	value V
	until time.Time
}

func newTable[V any](most int) *table[V] {
	return &table[V]{most: most, entries: make(map[bucket]ending[V])}
}

// Empty reports, without a lock, whether there are no entries.
func (t *table[V]) Empty() bool { return !t.some.Load() }

// Get returns the value of a bucket, and false if there is none or it has ended.
func (t *table[V]) Get(name bucket, now time.Time) (v V, found bool) {
	if t.Empty() {
		return v, false
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.live(name, now)
}

func (t *table[V]) live(name bucket, now time.Time) (v V, found bool) {
	if e := t.entries[name]; e.until.After(now) {
		return e.value, true
	}
	return v, false
}

// Put keeps a value until it ends, and reports whether there was room for it.
func (t *table[V]) Put(name bucket, v V, until, now time.Time) (room bool) {
	return t.Update(name, now, func(V, bool) (V, time.Time, bool) { return v, until, true })
}

// Update atomically replaces the value of a bucket by the result of f, which is called with
// the lock held. If f returns false for keep, the value is deleted. Update reports whether
// there was room.
func (t *table[V]) Update(name bucket, now time.Time, f func(v V, found bool) (next V, until time.Time, keep bool)) (room bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	next, until, keep := f(t.live(name, now))
	if !keep {
		t.delete(name)
		return true
	}
	if _, known := t.entries[name]; !known && !t.hasRoom(now) {
		return false
	}
	t.entries[name] = ending[V]{next, until}
	t.some.Store(true)
	return true
}

// hasRoom drops what has ended from a full table, no more often than once a second.
func (t *table[V]) hasRoom(now time.Time) bool {
	if len(t.entries) >= t.most && now.Sub(t.swept) >= time.Second {
		t.swept = now
		t.sweep(now)
	}
	return len(t.entries) < t.most
}

func (t *table[V]) sweep(now time.Time) {
	maps.DeleteFunc(t.entries, func(_ bucket, e ending[V]) bool { return !e.until.After(now) })
	t.some.Store(len(t.entries) > 0)
}

// Names drops what has ended, and returns the buckets of the rest.
func (t *table[V]) Names(now time.Time) []bucket {
	if t.Empty() {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sweep(now)
	return slices.Collect(maps.Keys(t.entries))
}

// Delete drops the value of a bucket.
func (t *table[V]) Delete(name bucket) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.delete(name)
}

func (t *table[V]) delete(name bucket) {
	delete(t.entries, name)
	t.some.Store(len(t.entries) > 0)
}
