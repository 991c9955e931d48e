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

// A holding is what one body holds of a Memory, whose lock guards it.
type holding struct {
	memory *Memory
	client netip.Prefix
	held   int64 // bytes
	ended  bool  // nothing is held any more
}

// take takes n bytes more, if the memory and the client's share have so many.
func (h *holding) take(n int64) bool {
	m := h.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	if h.ended || m.clients[h.client]+n > m.most/clientShare || !m.Reserve(n) {
		return false
	}
	h.held += n
	m.clients[h.client] += n
	return true
}

// give gives n bytes back, unless end has.
func (h *holding) give(n int64) {
	h.memory.mu.Lock()
	defer h.memory.mu.Unlock()
	h.giveBack(min(n, h.held))
}

// end gives all back. Nothing can be taken after that.
func (h *holding) end() {
	h.memory.mu.Lock()
	defer h.memory.mu.Unlock()
	h.giveBack(h.held)
	h.ended = true
}

// giveBack is give for a caller who holds the lock.
func (h *holding) giveBack(n int64) {
	m := h.memory
	m.Return(n)
	h.held -= n
	if m.clients[h.client] -= n; m.clients[h.client] == 0 {
		delete(m.clients, h.client)
	}
}
