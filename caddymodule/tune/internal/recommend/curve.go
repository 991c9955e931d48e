package recommend

import (
	"cmp"
	"maps"
	"math"
	"net/netip"
	"slices"
	"sort"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/tune/internal/survey"
	bucketkey "github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

// curve returns the curve of a survey, with the recommended limit. No capacity is below
// floor.
func (s *Study) curve(in *survey.Survey, unit string, floor float64) Curve {
	points := in.Curve(s.options.Spare/100, floor)
	// Rounded, as the last bits of sums depend on the order of the keys in the log.
	c := Curve{Load: math.Round(in.Load*1e6) / 1e6, Recommended: choose(points)}
	verb, checked := "Recommended", 0.0
	if check := s.options.Check; check.Leak != "" && in != s.times {
		verb, c.Recommended, checked = "To check", len(points)-1, check.Capacity
	}
	rung, best := in.Rung(c.Recommended), &points[c.Recommended]
	if checked > 0 {
		*best = rung.Judge(checked)
	} else {
		*best = generous(rung, *best)
	}
	for i, p := range points {
		c.Points = append(c.Points, Point{
			Limit: Limit{s.ladder[i], p.Capacity}, RefillSeconds: p.TimeToEmpty(p.Capacity).Seconds(),
			RefusedKeys: p.RefusedKeys, RefusedPeople: p.RefusedPeople, RefusedRequests: p.RefusedRequests, RefusedLoad: math.Round(p.RefusedLoad/cmp.Or(c.Load, 1)*1e9) / 1e9,
		})
	}
	c.Reason = c.reason(verb, in.Keys, in.Requests, unit, noun(s.options.Key))
	return c
}

// weights returns how much each key counts where people are spared: keys of others not at
// all, and those of a network together for at most a twentieth of all people, where these
// come from so many networks.
func (s *Study) weights() []float64 {
	const share = 20
	people, all := make(map[netip.Prefix]int), 0.0
	for id, client := range s.keys {
		if s.person(id) {
			people[network(client.addr)]++
			all++
		}
	}
	most := math.Inf(1)
	if sizes := slices.Sorted(maps.Values(people)); len(sizes) >= share {
		slices.Reverse(sizes)
		for larger, n := range sizes {
			if most = all / float64(share-larger); float64(n) <= most {
				break
			}
			all -= float64(n)
		}
	}
	weights := make([]float64, len(s.keys))
	for id, client := range s.keys {
		if s.person(id) {
			weights[id] = min(1, most/float64(people[network(client.addr)]))
		}
	}
	return weights
}

// network returns the /24 of an address, or the /48 of IPv6.
func network(addr netip.Addr) netip.Prefix {
	if !addr.IsValid() {
		return netip.Prefix{}
	}
	return bucketkey.ClientPrefix(addr, 24, 48)
}

// generous returns the limit with the leak of a point and the largest round capacity that
// removes nearly as much of the load as the capacity there, and is full again within ten
// minutes. A burst hardly changes what a scraper gets in an hour, and people come in bursts
// that the log has not seen.
func generous(rung *survey.Rung, least survey.Point) survey.Point {
	most, unit := math.Floor(least.Leak*forgives.Seconds()+1e-6), math.Pow10(int(math.Log10(least.Capacity)))
	// The more of them there are, the more a single line of the log decides.
	round := []float64{max(least.Capacity, min(most, unit*math.Ceil(least.Capacity/unit)))}
	for ; unit <= most; unit *= 10 {
		for _, digit := range []float64{1, 2, 3, 4, 5, 6, 8} {
			if digit*unit > round[0] && digit*unit <= most {
				round = append(round, digit*unit)
			}
		}
	}
	best := least
	if least.RefusedLoad == 0 {
		return best
	}
	sort.Search(len(round), func(i int) bool {
		p := rung.Judge(round[i])
		if p.RefusedLoad < nearlyAll*least.RefusedLoad {
			return true
		}
		best = p
		return false
	})
	return best
}

// choose returns the index of the limit to recommend. All of them spare the same share of the
// people. Of those that give a client its whole burst back within ten minutes, and remove
// nearly as much of the load as the best of these, it is the one with the fastest leak.
func choose(points []survey.Point) int {
	best, chosen := 0.0, len(points)-1 // it forgives soonest
	forgiving := func(p survey.Point) bool { return p.TimeToEmpty(p.Capacity) <= forgives+time.Millisecond }
	for _, p := range points {
		if forgiving(p) {
			best = max(best, p.RefusedLoad)
		}
	}
	for i, p := range points {
		if forgiving(p) && p.RefusedLoad >= nearlyAll*best {
			chosen = i
		}
	}
	return chosen
}
