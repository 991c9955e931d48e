package recommend

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
)

// Names are names of networks, such as those of their operators.
type Names map[netip.Prefix]string

// of returns the name of the narrowest network of an address, or "".
func (n Names) of(addr netip.Addr) string {
	for bits := addr.BitLen(); bits > 0 && len(n) > 0; bits-- {
		prefix, _ := addr.Prefix(bits)
		if name := n[prefix]; name != "" {
			return name
		}
	}
	return ""
}

// A Network is a /24, a /48 of IPv6, or all networks of one name.
type Network struct {
	Network  string  `json:"network,omitempty"`
	Keys     int     `json:"keys"`
	People   int     `json:"people"` // of these keys
	Requests int     `json:"requests"`
	Refused  int     `json:"refused"`    // by the recommended limit
	Load     float64 `json:"load_share"` // of the whole load, from 0 to 1
}

// add counts a key.
func (n *Network) add(person bool, requests, refused int, load float64) {
	n.Keys++
	if person {
		n.People++
	}
	n.Requests, n.Refused, n.Load = n.Requests+requests, n.Refused+refused, n.Load+load
}

const (
	// A network is listed from two keys and so much of the load on.
	leastShare = 0.01

	// Quiet robots are called a swarm from so many and so much of the load on.
	swarmKeys  = 1000
	swarmShare = 0.05
)

// networks lists those that sent most, and counts the robots that no limit holds.
func (s *Study) networks(r *Result, refused map[int]int) {
	whole := cmp.Or(r.Units.Load, 1)
	loads := make(map[netip.Prefix]float64) // there may be many, so that only large ones are more than that
	for id, client := range s.keys {
		_, load := s.units.Charged(id)
		loads[network(client.addr)] += load
	}
	all := make(map[string]*Network)
	for id, client := range s.keys {
		addr := client.addr
		if !addr.IsValid() {
			continue
		}
		requests, load := s.units.Charged(id)
		person := s.person(id)
		if !person && refused[id] == 0 {
			r.Quiet.add(false, requests, 0, load)
		}
		name, of := s.options.Names.of(addr), network(addr)
		if name == "" && loads[of] < leastShare*whole {
			continue
		}
		name = cmp.Or(name, of.String())
		n := all[name]
		if n == nil {
			n = &Network{Network: name}
			all[name] = n
		}
		n.add(person, requests, refused[id], load)
	}
	r.Quiet.Load /= whole
	r.Networks = []Network{}
	for _, n := range slices.SortedFunc(maps.Values(all), func(a, b *Network) int { return cmp.Or(cmp.Compare(b.Load, a.Load), cmp.Compare(a.Network, b.Network)) }) {
		if n.Load /= whole; n.Keys > 1 && n.Load >= leastShare && len(r.Networks) < shownKeys {
			r.Networks = append(r.Networks, *n)
		}
	}
}
