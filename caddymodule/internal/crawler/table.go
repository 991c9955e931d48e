package crawler

import (
	"net/netip"
	"slices"
)

// A table finds out whether an address is in one of many networks, which are in order, none
// within another. It is immutable.
type table []netip.Prefix

func newTable(networks []netip.Prefix) *table {
	t := new(table)
	for _, network := range slices.SortedFunc(slices.Values(networks), netip.Prefix.Compare) {
		if n := len(*t); n == 0 || !(*t)[n-1].Contains(network.Addr()) {
			*t = append(*t, network)
		}
	}
	return t
}

// contains reports whether an address is in one of the networks.
func (t *table) contains(addr netip.Addr) bool {
	if t == nil {
		return false
	}
	i, exact := slices.BinarySearchFunc(*t, addr, func(n netip.Prefix, addr netip.Addr) int { return n.Addr().Compare(addr) })
	return exact || i > 0 && (*t)[i-1].Contains(addr)
}
