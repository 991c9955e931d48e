package crawler

import (
	"net/netip"
	"slices"
)

// A table finds out whether an address is in one of many networks. It is immutable.
type table struct {
	from, to []netip.Addr // of ranges that do not overlap, in order
}

func newTable(networks []netip.Prefix) *table {
	networks = slices.Clone(networks)
	slices.SortFunc(networks, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	t := new(table)
	for _, network := range networks {
		from, to := network.Addr(), last(network)
		if n := len(t.to); n > 0 && from.Compare(t.to[n-1]) <= 0 {
			if to.Compare(t.to[n-1]) > 0 {
				t.to[n-1] = to
			}
			continue
		}
		t.from, t.to = append(t.from, from), append(t.to, to)
	}
	return t
}

// contains reports whether an address is in one of the networks.
func (t *table) contains(addr netip.Addr) bool {
	if t == nil {
		return false
	}
	i, exact := slices.BinarySearchFunc(t.from, addr, netip.Addr.Compare)
	if exact {
		return true
	}
	return i > 0 && addr.Compare(t.to[i-1]) <= 0
}

// last returns the last address of a network.
func last(network netip.Prefix) netip.Addr {
	raw := network.Addr().AsSlice()
	for bit := network.Bits(); bit < 8*len(raw); bit++ {
		raw[bit/8] |= 0x80 >> (bit % 8)
	}
	addr, _ := netip.AddrFromSlice(raw)
	return addr
}
