package recommend

import (
	"cmp"
	"maps"
	"math"
	"net/netip"
	"slices"
	"sort"
)

// A Curve is what the limits of a ladder would have done.
type Curve struct {
	Load        float64 `json:"load"` // all costs, in units
	Points      []Point `json:"points"`
	Recommended int     `json:"recommended"` // index into the points
	Reason      string  `json:"reason"`

	best *Rung
}

// A Point is one limit.
type Point struct {
	Limit
	RefillSeconds   float64 `json:"refill_seconds"` // after which a client has its whole burst again
	RefusedKeys     int     `json:"refused_keys"`
	RefusedPeople   int     `json:"refused_people"` // keys of clients that look like people
	RefusedRequests int     `json:"refused_requests"`
	RefusedLoad     float64 `json:"refused_load_share"` // of the whole load, from 0 to 1
}

// Best returns the point that is recommended.
func (c *Curve) Best() Point { return c.Points[c.Recommended] }

func nothing(int, *charge) {}

// curve finds, for each leak of the ladder, the least whole capacity that spares the people, and
// no less than floor, and what that refuses. It recommends one of these limits.
func (s *Study) curve(floor float64) *Curve {
	c, load := new(Curve), 0.0
	for id := range s.keys {
		for _, charge := range s.charges(id) {
			load += s.load(&charge)
		}
	}
	rungs := s.rungs(s.ladder...)
	for _, r := range rungs {
		c.Points = append(c.Points, r.judge(max(floor, r.capacityFor(s.options.Spare/100)), nothing))
	}
	c.Recommended = choose(c.Points)
	check := s.options.Check
	if check.Leak != "" {
		c.Recommended = len(c.Points) - 1
	}
	best := &c.Points[c.Recommended]
	if c.best = rungs[c.Recommended]; check.Leak != "" {
		*best = c.best.judge(check.Capacity, nothing)
	} else {
		*best = generous(c.best, *best)
	}
	// Rounded, as the last bits of sums depend on the order of the keys in the log.
	c.Load = math.Round(load*1e6) / 1e6
	for i := range c.Points {
		p := &c.Points[i]
		p.RefusedLoad = math.Round(p.RefusedLoad/cmp.Or(c.Load, 1)*1e9) / 1e9
	}
	return c
}

// capacityFor returns the least whole capacity that spares that share of the people, or of
// those whom any capacity spares.
func (r *Rung) capacityFor(spare float64) float64 {
	var ids []int
	all := 0.0
	for id, weight := range r.study.weights {
		if r.needs[id] >= 0 && weight > 0 {
			ids = append(ids, id)
			all += weight
		}
	}
	slices.SortFunc(ids, func(a, b int) int { return cmp.Compare(r.needs[a], r.needs[b]) })
	// 0.999 of 1000 is 999.0000000000001 in places: a key too many would be spared.
	left, most := spare*all-1e-6, 0.0
	for _, id := range ids {
		if left <= 0 || math.IsInf(r.needs[id], 1) {
			break
		}
		left, most = left-r.study.weights[id], r.needs[id]
	}
	return max(1, math.Ceil(most/(1+tolerance)))
}

// weigh finds how much each key counts where people are spared: keys of others not at all, and
// those of a network together for at most a twentieth of all people, where these come from so
// many networks.
func (s *Study) weigh() {
	const share = 20
	people, all := make(map[netip.Prefix]int), 0.0
	for id := range s.keys {
		if s.person(id) {
			people[s.clients.Of(s.keys[id].sender).Network()]++
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
	s.weights = make([]float64, len(s.keys))
	for id := range s.keys {
		if s.person(id) {
			s.weights[id] = min(1, most/float64(people[s.clients.Of(s.keys[id].sender).Network()]))
		}
	}
}

// generous returns the limit with the leak of a point and the largest round capacity that
// removes nearly as much of the load as the capacity there, and is full again within ten
// minutes. A burst hardly changes what a scraper gets in an hour, and people come in bursts
// that the log has not seen.
func generous(rung *Rung, least Point) Point {
	most, unit := math.Floor(rate(least.Leak)*forgives+1e-6), math.Pow10(int(math.Log10(least.Capacity)))
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
		p := rung.judge(round[i], nothing)
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
func choose(points []Point) int {
	best, chosen := 0.0, len(points)-1 // it forgives soonest
	forgiving := func(p Point) bool { return p.RefillSeconds <= forgives+.001 }
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
