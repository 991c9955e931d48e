package body

import (
	"net/netip"
	"sync"
	"sync/atomic"
)

// clientShare is which part of a Memory one client may hold: a tenth.
const clientShare = 10

// A Memory bounds how much is held at once, by bodies that are read ahead and others. Of
// the bodies, those of one client hold at most a tenth. It is safe for concurrent use.
type Memory struct {
	most int64
	used atomic.Int64

	mu      sync.Mutex
	clients map[netip.Prefix]int64 // what the bodies of each hold
}

// NewMemory returns a memory of so many bytes.
func NewMemory(most int64) *Memory {
	return &Memory{most: most, clients: make(map[netip.Prefix]int64)}
}

// Used returns how many bytes are held now.
func (m *Memory) Used() int64 { return m.used.Load() }

// Return gives n reserved bytes back.
func (m *Memory) Return(n int64) { m.used.Add(-n) }

// Reserve reserves n bytes, if there are so many. The caller gives them back by Return.
func (m *Memory) Reserve(n int64) bool {
	if m.used.Add(n) <= m.most {
		return true
	}
	m.used.Add(-n)
	return false
}

// A holding is what one body holds of a Memory.
type holding struct {
	memory *Memory
	client netip.Prefix

	mu    sync.Mutex
	held  int64 // bytes
	ended bool  // nothing is held any more
}

// take takes n bytes more, if the memory and the client's share have so many.
func (h *holding) take(n int64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended || !h.change(n) {
		return false
	}
	h.held += n
	return true
}

// give gives n bytes back, unless end has.
func (h *holding) give(n int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.ended {
		h.change(-n)
		h.held -= n
	}
}

// end gives all back. Nothing can be taken after that.
func (h *holding) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.change(-h.held)
	h.held, h.ended = 0, true
}

// change adds n bytes to what the client holds of the memory, if there are so many.
func (h *holding) change(n int64) bool {
	m := h.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	after := m.clients[h.client] + n
	if n > 0 && (after > m.most/clientShare || !m.Reserve(n)) {
		return false
	}
	if n < 0 {
		m.Return(-n)
	}
	if m.clients[h.client] = after; after == 0 {
		delete(m.clients, h.client)
	}
	return true
}
