package recommend

import (
	"cmp"
	"maps"
	"math"
	"net/netip"
	"slices"
	"sort"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/survey"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	bucketkey "github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

// curve returns the curve of a survey, with the recommended limit. No capacity is below
// floor.
func (s *Study) curve(in *survey.Survey, unit string, floor float64) (Curve, error) {
	// The survey in seconds has fewer keys if some lines have no duration.
	keyOf := func(id int) int {
		if in == s.units {
			return id
		}
		of, _ := s.units.ID(in.Name(id))
		return of
	}
	weights := s.weights()
	weight := func(id int) float64 { return weights[keyOf(id)] }
	points, err := in.Curve(s.options.Spare/100, floor, weight)
	if err != nil {
		return Curve{}, err
	}
	c := Curve{Load: in.Load(), Recommended: choose(points)}
	verb, best := "Recommended", &points[c.Recommended]
	if capacity, leak := s.options.checked(); leak != "" && in != s.times {
		verb, c.Recommended = "To check", len(points)-1
		best = &points[c.Recommended]
		*best, err = judge(in, c.Recommended, capacity, best.Leak)
	} else {
		*best, err = generous(in, c.Recommended, *best)
	}
	for i, p := range points {
		point := Point{
			Leak: s.ladder[i], Capacity: p.Capacity, RefillSeconds: p.TimeToEmpty(p.Capacity).Seconds(),
			RefusedKeys: p.RefusedKeys, RefusedRequests: p.RefusedRequests, RefusedLoad: p.RefusedLoad / cmp.Or(c.Load, 1),
		}
		for id := range in.Keys() {
			if weight(id) > 0 && in.Refused(id, i, p.Capacity) {
				point.RefusedPeople++
			}
		}
		c.Points = append(c.Points, point)
	}
	c.Reason = c.reason(verb, in.Keys(), in.Requests(), unit, s.noun())
	return c, err
}

// weights returns how much each key counts where people are spared: keys of others not at
// all, and those of a network together for at most a twentieth of all people, where these
// come from so many networks.
func (s *Study) weights() []float64 {
	const share = 20
	people, all := make(map[netip.Prefix]int), 0.0
	for id, client := range s.keys {
		if s.person(id) {
			people[network(client)]++
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
			weights[id] = min(1, most/float64(people[network(client)]))
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

// judge returns what a limit with a leak of the ladder does.
func judge(in *survey.Survey, i int, capacity, leak float64) (survey.Point, error) {
	p := survey.Point{Limit: leakybucket.Limit{Capacity: capacity, Leak: leak}}
	for id := range in.Keys() {
		if in.Refused(id, i, capacity) {
			p.RefusedKeys++
		}
	}
	return p, in.Refusals(i, capacity, func(_ int, _ leakybucket.Instant, cost float64) {
		p.RefusedRequests++
		p.RefusedLoad += cost
	})
}

// generous returns the limit with the leak of a point and the largest round capacity that
// removes nearly as much of the load as the capacity there, and is full again within ten
// minutes. A burst hardly changes what a scraper gets in an hour, and people come in bursts
// that the log has not seen.
func generous(in *survey.Survey, leak int, least survey.Point) (survey.Point, error) {
	most, unit := math.Floor(least.Leak*forgives.Seconds()+1e-6), math.Pow10(int(math.Log10(least.Capacity)))
	// The more of them there are, the more a single line of the log decides.
	round := []float64{max(least.Capacity, min(most, unit*math.Ceil(least.Capacity/unit)))}
	for ; unit <= most; unit *= 10 {
		for _, digit := range []float64{1, 2, 3, 5, 8} {
			if digit*unit > round[0] && digit*unit <= most {
				round = append(round, digit*unit)
			}
		}
	}
	best, failed := least, error(nil)
	if least.RefusedLoad == 0 {
		return best, nil
	}
	sort.Search(len(round), func(i int) bool {
		p, err := judge(in, leak, round[i], least.Leak)
		failed = cmp.Or(failed, err)
		if p.RefusedLoad < nearlyAll*least.RefusedLoad {
			return true
		}
		best = p
		return false
	})
	return best, failed
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
