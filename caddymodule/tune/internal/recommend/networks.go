package recommend

import (
	"cmp"
	"net/netip"
	"slices"
)

// A Network is a /24, or a /48 of IPv6.
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
	all := make(map[netip.Prefix]*Network)
	for id, client := range s.keys {
		if !client.addr.IsValid() {
			continue
		}
		requests, load := s.units.Charged(id)
		person := s.person(id)
		if !person && refused[id] == 0 {
			r.Quiet.add(false, requests, 0, load)
		}
		of := network(client.addr)
		if all[of] == nil {
			all[of] = new(Network)
		}
		all[of].add(person, requests, refused[id], load)
	}
	r.Quiet.Load /= whole
	r.Networks = []Network{}
	for of, n := range all {
		if n.Load /= whole; n.Keys > 1 && n.Load >= leastShare {
			n.Network = of.String()
			r.Networks = append(r.Networks, *n)
		}
	}
	slices.SortFunc(r.Networks, func(a, b Network) int { return cmp.Or(cmp.Compare(b.Load, a.Load), cmp.Compare(a.Network, b.Network)) })
	r.Networks = r.Networks[:min(len(r.Networks), shownKeys)]
}
