package verify

import (
	"net/netip"
	"strings"

	bucketkey "github.com/caddy-throttle/caddy-throttle/leakybucket/key"
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

	// Sources are the lists that must be in use for the set.
	Sources []string
}

// NewSet returns a set of crawlers. DNS asks a server, or the system's servers if it is
// empty.
func NewSet(lists *Lists, lookups *Lookups, crawlers []*Crawler, server string) *Set {
	s := &Set{lists: lists, lookups: lookups, server: server, resolver: NewResolver(server)}
	for _, c := range crawlers {
		s.Sources = append(s.Sources, c.Lists...)
		if !c.Claimed {
			s.open = append(s.open, c.Lists...)
		}
		if c.Claimed || len(c.Domains) > 0 {
			s.named = append(s.named, c)
		}
	}
	return s
}

// Verified reports whether a client with that User-Agent is one of the crawlers, as far
// as is known now.
func (s *Set) Verified(addr netip.Addr, agent string) bool {
	addr = bucketkey.Unmap(addr)
	if !addr.IsValid() {
		return false
	}
	if s.lists.contain(s.open, addr) {
		return true
	}
	if len(s.named) == 0 {
		return false
	}
	agent = strings.ToLower(agent[:min(len(agent), mostAgent)])
	for _, c := range s.named {
		if !c.Claims(agent) {
			continue
		}
		if c.Claimed && s.lists.contain(c.Lists, addr) {
			return true
		}
		if len(c.Domains) > 0 && s.lookups.holds(claim{addr, c, s.server}, s.resolver) {
			return true
		}
	}
	return false
}
