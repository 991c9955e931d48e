package caddymodule

import (
	"sync"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// A room is where a zone's requests are between the decision and the next
// handler: in a row until it is their turn, and in slots while they are served.
// It knows no limits; they come with each call, so that a reload changes them
// and nothing else. What is kept of a key is gone with its last request.
type room struct {
	mu      sync.Mutex
	waiting int
	rows    map[string][]*waiter // by key: who waits for what is before them to leak
	slots   map[string]*slots    // by key: who is served, and who waits for that
}

// A waiter is a request that waits.
type waiter struct {
	at    leakybucket.Instant // when its turn comes, on the store's clock
	n     int                 // or: of how many slots it wants one
	ready chan struct{}       // closed when nobody of its key is before it, or when it has its slot
}

// slots are those of one key.
type slots struct {
	taken int
	row   []*waiter
}

// enter counts a request that waits, if no more than most would.
func (m *room) enter(most int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.waiting >= most {
		return false
	}
	m.waiting++
	return true
}

// leave counts one less.
func (m *room) leave() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.waiting--
}

// queue puts a request into the row of its key, where its turn comes at an
// instant. Timers wake them in no order that could be relied upon; the row does.
func (m *room) queue(key string, at leakybucket.Instant) *waiter {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.rows == nil {
		m.rows = make(map[string][]*waiter)
	}
	w := &waiter{at: at, ready: make(chan struct{})}
	row := m.rows[key]
	place := len(row)
	for place > 0 && row[place-1].at > at {
		place--
	}
	row = append(row, nil)
	copy(row[place+1:], row[place:])
	row[place] = w
	m.rows[key] = row
	if place == 0 {
		close(w.ready)
	}
	return w
}

// unqueue takes a request out of its row, and lets the next one go first.
func (m *room) unqueue(key string, w *waiter) {
	m.mu.Lock()
	defer m.mu.Unlock()
	row := without(m.rows[key], w)
	if len(row) == 0 {
		delete(m.rows, key)
		return
	}
	m.rows[key] = row
	select {
	case <-row[0].ready:
	default:
		close(row[0].ready)
	}
}

func without(row []*waiter, w *waiter) []*waiter {
	for i := range row {
		if row[i] == w {
			copy(row[1:i+1], row[:i]) // mostly it is the first, and nothing moves
			row[0] = nil
			return row[1:]
		}
	}
	return row
}

// vacant reports whether one of n slots of a key is free.
func (m *room) vacant(key string, n int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.slots[key]
	return s == nil || s.taken < n && len(s.row) == 0
}

// take takes one of n slots of a key, if one is free.
func (m *room) take(key string, n int) bool { return m.takeOrQueue(key, n, nil) }

// takeOrQueue takes one of n slots of a key. If there is none free it puts w, if
// that is not nil, into the row for one.
func (m *room) takeOrQueue(key string, n int, w *waiter) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.slots[key]
	if s == nil {
		if m.slots == nil {
			m.slots = make(map[string]*slots)
		}
		s = new(slots)
		m.slots[key] = s
	}
	if s.taken < n && len(s.row) == 0 {
		s.taken++
		return true
	}
	if w != nil {
		s.row = append(s.row, w)
	}
	return false
}

// giveUp takes w out of the row for a slot. It reports false if w has been given
// one meanwhile, which is its own then.
func (m *room) giveUp(key string, w *waiter) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	select {
	case <-w.ready:
		return false
	default:
	}
	s := m.slots[key]
	s.row = without(s.row, w)
	return true
}

// release gives a slot back, to the first in the row if there is one.
func (m *room) release(key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.slots[key]
	for s.taken--; len(s.row) > 0 && s.taken < s.row[0].n; s.taken++ {
		close(s.row[0].ready)
		s.row = without(s.row, s.row[0])
	}
	if s.taken == 0 {
		delete(m.slots, key)
	}
}

// counts returns how many wait, and how many are served.
func (m *room) counts() (waiting, served int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.slots {
		served += s.taken
	}
	return m.waiting, served
}
