package crawler

import (
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
)

// mostAgent is how much of a User-Agent is searched for names, in bytes.
const mostAgent = 512

// A Set recognizes some crawlers. It is safe for concurrent use.
type Set struct {
	lists   *Lists
	lookups *Lookups

	server   string // of DNS
	resolver Resolver
	open     []string // lists whose addresses need no further proof
	named    []*Crawler

	mu     sync.Mutex // of the goroutine that rebuilds the tables
	tables atomic.Pointer[tables]
}

// tables are what a set looks addresses up in.
type tables struct {
	generation uint64 // of the lists
	open       *table
	claimed    map[*Crawler]*table
}

// NewSet returns a set of known crawlers, and of lists by their URLs. DNS asks
// a server, or the system's servers if it is empty.
func NewSet(lists *Lists, lookups *Lookups, crawlers []*Crawler, sources []string, server string) *Set {
	s := &Set{lists: lists, lookups: lookups, server: server, resolver: NewResolver(server), open: sources}
	for _, c := range crawlers {
		if !c.Claimed {
			s.open = append(s.open, c.Lists...)
		}
		if c.Claimed || len(c.Domains) > 0 {
			s.named = append(s.named, c)
		}
	}
	return s
}

// Sources returns the lists that must be in use for the set.
func (s *Set) Sources() (sources []string) {
	sources = append(sources, s.open...)
	for _, c := range s.named {
		if c.Claimed {
			sources = append(sources, c.Lists...)
		}
	}
	return sources
}

// Verified reports whether a client with that User-Agent is one of the crawlers, as far
// as is known now.
func (s *Set) Verified(addr netip.Addr, agent string) bool {
	addr = addr.Unmap()
	if !addr.IsValid() {
		return false
	}
	t := s.current()
	if t.open.contains(addr) {
		return true
	}
	if len(s.named) == 0 {
		return false
	}
	agent = strings.ToLower(agent[:min(len(agent), mostAgent)])
	for _, c := range s.named {
		if !c.claims(agent) {
			continue
		}
		if t.claimed[c].contains(addr) {
			return true
		}
		if len(c.Domains) > 0 && s.lookups.holds(claim{addr, c, s.server}, s.resolver) {
			return true
		}
	}
	return false
}

// current returns the tables. One goroutine rebuilds them when a list has changed,
// while others use the last ones.
func (s *Set) current() *tables {
	t, generation := s.tables.Load(), s.lists.generation.Load()
	if t != nil && t.generation == generation || !s.mu.TryLock() {
		if t == nil {
			return new(tables)
		}
		return t
	}
	defer s.mu.Unlock()
	t = &tables{generation: generation, claimed: make(map[*Crawler]*table)}
	t.open = s.table(s.open)
	for _, c := range s.named {
		if c.Claimed {
			t.claimed[c] = s.table(c.Lists)
		}
	}
	s.tables.Store(t)
	return t
}

func (s *Set) table(sources []string) *table {
	var networks []netip.Prefix
	for _, source := range sources {
		networks = append(networks, s.lists.networks(source)...)
	}
	return newTable(networks)
}
