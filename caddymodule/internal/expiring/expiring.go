// Package expiring has bounded tables whose entries expire: a [Map] takes no new entries
// while it is full, and of [Shares] what ends first gives way.
package expiring

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// A table smaller than this is not worth a sweep.
	leastSwept = 1024

	// A full table is swept at most this often, since it may stay full for long.
	sweepEvery = time.Second
)

// A Map keeps entries until they expire, and never more than its bound. It is
// safe for concurrent use. Expired entries are removed in sweeps, which cost a
// constant per entry put: when the table has doubled since the last sweep, and
// once a second while it is full.
type Map[K comparable, V any] struct {
	most    int
	some    atomic.Bool // anything at all: in most tables, most of the time, nothing is
	mu      sync.RWMutex
	entries map[K]entry[V]
	sweepAt int // the number of entries that makes the next sweep due
	swept   time.Time
}

type entry[V any] struct {
	value V
	until time.Time
}

// New returns an empty table of at most the given number of entries.
func New[K comparable, V any](most int) *Map[K, V] {
	return &Map[K, V]{most: most, entries: make(map[K]entry[V])}
}

// Empty reports, without a lock, whether the table has no entries.
func (m *Map[K, V]) Empty() bool { return !m.some.Load() }

// Get returns the value of a key, and false if there is none or it has expired.
func (m *Map[K, V]) Get(k K, now time.Time) (V, bool) {
	if m.Empty() {
		var none V
		return none, false
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.live(k, now)
}

// Put keeps a value until it expires. It returns false if the key is new and the
// table is full of entries that have not expired.
func (m *Map[K, V]) Put(k K, v V, until, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.put(k, v, until, now)
}

// Update atomically replaces the value of a key by the result of f, which is
// called with the lock held. found reports whether there was a value. If f
// returns false for keep, the key is deleted.
func (m *Map[K, V]) Update(k K, now time.Time, f func(v V, found bool) (next V, until time.Time, keep bool)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, found := m.live(k, now)
	if next, until, keep := f(v, found); keep {
		m.put(k, next, until, now)
	} else {
		m.remove(k)
	}
}

// Change atomically replaces the value of a key, if there is one. When it expires
// stays.
func (m *Map[K, V]) Change(k K, now time.Time, f func(v V) V) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if v, found := m.live(k, now); found {
		m.entries[k] = entry[V]{f(v), m.entries[k].until}
	}
}

// Take returns the value of a key and deletes it.
func (m *Map[K, V]) Take(k K, now time.Time) (V, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, found := m.live(k, now)
	m.remove(k)
	return v, found
}

// Delete deletes a key.
func (m *Map[K, V]) Delete(k K) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.remove(k)
}

// Len returns the number of entries, including expired ones that were not swept
// yet.
func (m *Map[K, V]) Len() int {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return len(m.entries)
}

// Some returns the keys of up to most entries that have not expired. If there are
// more, each call returns others.
func (m *Map[K, V]) Some(most int, now time.Time) (keys []K) {
	if m.Empty() {
		return nil
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	for k, e := range m.entries {
		if len(keys) == most {
			break
		}
		if e.until.After(now) {
			keys = append(keys, k)
		}
	}
	return keys
}

func (m *Map[K, V]) live(k K, now time.Time) (V, bool) {
	e, found := m.entries[k]
	if !found || !e.until.After(now) {
		var none V
		return none, false
	}
	return e.value, true
}

func (m *Map[K, V]) put(k K, v V, until, now time.Time) bool {
	if _, there := m.entries[k]; !there {
		if m.sweepDue(now) {
			m.sweep(now)
		}
		if len(m.entries) >= m.most {
			return false
		}
	}
	m.entries[k] = entry[V]{v, until}
	m.some.Store(true)
	return true
}

func (m *Map[K, V]) remove(k K) {
	delete(m.entries, k)
	m.some.Store(len(m.entries) > 0)
}

func (m *Map[K, V]) sweepDue(now time.Time) bool {
	if len(m.entries) >= m.most {
		return now.Sub(m.swept) >= sweepEvery
	}
	return len(m.entries) >= max(m.sweepAt, leastSwept)
}

func (m *Map[K, V]) sweep(now time.Time) {
	for k, e := range m.entries {
		if !e.until.After(now) {
			delete(m.entries, k)
		}
	}
	m.sweepAt, m.swept = 2*len(m.entries), now
	m.some.Store(len(m.entries) > 0)
}
