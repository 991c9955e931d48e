package recommend

import (
	"math"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/survey"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// curve returns the curve of a survey, with the recommended limit, whose capacity is at
// least that.
func (s *Study) curve(in *survey.Survey, unit string, least float64) (Curve, error) {
	// The survey in seconds has fewer keys if some lines have no duration.
	keyOf := func(id int) int {
		if in == s.units {
			return id
		}
		of, _ := s.units.ID(in.Name(id))
		return of
	}
	counts := func(id int) bool { return s.person(keyOf(id)) }
	spared := counts
	if !s.options.People {
		spared = nil
	}
	points, err := in.Curve(s.options.Spare/100, spared)
	if err != nil {
		return Curve{}, err
	}
	c := Curve{Load: in.Load()}
	describe := func(i int, p survey.Point) Point {
		point := Point{
			Leak: s.ladder[i], Capacity: p.Capacity, RefillSeconds: p.TimeToEmpty(p.Capacity).Seconds(),
			RefusedKeys: p.RefusedKeys, RefusedRequests: p.RefusedRequests,
		}
		if c.Load > 0 {
			point.RefusedLoad = p.RefusedLoad / c.Load
		}
		for id := range in.Keys() {
			if counts(id) && in.Refused(id, i, p.Capacity) {
				point.RefusedPeople++
			}
		}
		return point
	}
	for i, p := range points {
		c.Points = append(c.Points, describe(i, p))
	}
	chosen := choose(c.Points, least)
	capacity, _ := s.options.checked()
	if capacity > 0 && in != s.times {
		chosen = len(points) - 1
	} else if capacity, err = generous(in, chosen, points[chosen], least); err != nil {
		return Curve{}, err
	}
	tight, p := c.Points[chosen], points[chosen]
	p.Capacity = capacity
	p.RefusedKeys, p.RefusedRequests, p.RefusedLoad = 0, 0, 0
	for id := range in.Keys() {
		if in.Refused(id, chosen, p.Capacity) {
			p.RefusedKeys++
		}
	}
	err = in.Refusals(chosen, p.Capacity, func(_ int, _ leakybucket.Instant, cost float64) {
		p.RefusedRequests++
		p.RefusedLoad += cost
	})
	c.Recommended, c.Points[chosen] = chosen, describe(chosen, p)
	verb := "Recommended"
	if s.options.Check != "" && in != s.times {
		verb = "To check"
	}
	c.Reason = c.reason(verb, in.Keys(), in.Requests(), unit, s.noun(), tight)
	return c, err
}

// generous returns the largest capacity that, with the leak of a point, removes nearly as
// much of the load as the capacity there, and is full again within ten minutes. A burst
// hardly changes what a scraper gets in an hour, and people come in bursts that the log has
// not seen.
func generous(in *survey.Survey, leak int, p survey.Point, least float64) (float64, error) {
	low, high := p.Capacity, math.Floor(p.Leak*forgives.Seconds())
	const steps = 16
	for high > low {
		// Of capacities between the two, find the last that removes enough.
		step := math.Ceil((high - low) / steps)
		var tried []float64
		for capacity := low + step; capacity < high+step; capacity += step {
			tried = append(tried, min(capacity, high))
		}
		removed, err := in.Removed(leak, tried)
		if err != nil {
			return 0, err
		}
		enough := 0
		for enough < len(tried) && removed[enough] >= nearlyAll*p.RefusedLoad {
			enough++
		}
		if enough > 0 {
			low = tried[enough-1]
		}
		if enough == len(tried) || step == 1 {
			break
		}
		high = tried[enough] - 1
	}
	// Two digits are as exact as a log can be.
	if unit := math.Pow(10, math.Floor(math.Log10(low))-1); unit > 1 {
		low = max(p.Capacity, math.Floor(low/unit)*unit)
	}
	return max(low, least), nil
}

// choose returns the index of the limit to recommend. All of them spare the same
// share of the clients. Of those that give a client its whole burst back within ten
// minutes, and remove nearly as much of the load as the best of these, it is the one
// with the largest burst: people come in bursts, and the log has not seen them all. The
// burst will be at least that.
func choose(points []Point, least float64) int {
	best := 0.0
	forgiving := func(p Point) bool {
		return p.RefillSeconds*max(1, least/p.Capacity) <= forgives.Seconds()+1e-6
	}
	for _, p := range points {
		if forgiving(p) {
			best = max(best, p.RefusedLoad)
		}
	}
	chosen := -1
	for i, p := range points {
		if !forgiving(p) || p.RefusedLoad < nearlyAll*best {
			continue
		}
		if chosen < 0 || p.Capacity > points[chosen].Capacity {
			chosen = i
		}
	}
	if chosen >= 0 {
		return chosen
	}
	return len(points) - 1 // it forgives soonest
}
