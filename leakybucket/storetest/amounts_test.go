package storetest

import (
	"math"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

var amountMutants = []mutant{
	{"charges what it refuses", "worked example", bugs{rejudge: eachCharge(
		func(j judging, i int, c leakybucket.Charge, d *leakybucket.Decision) {
			if !d.Fits {
				j.states[i] = leakybucket.State{Level: d.Level + c.Cost, At: j.now}
			}
		})}},
	{"forgets what leaked when it refuses", "worked example", bugs{rejudge: eachCharge(
		func(j judging, i int, _ leakybucket.Charge, d *leakybucket.Decision) {
			if !d.Fits {
				j.states[i].At = j.now
			}
		})}},
	{"gives no level when it refuses", "worked example", bugs{rejudge: eachCharge(
		func(_ judging, _ int, _ leakybucket.Charge, d *leakybucket.Decision) {
			if !d.Fits {
				d.Level = math.NaN()
			}
		})}},
	{"refuses an exact fill", "exact fill fits", bugs{rejudge: eachCharge(
		func(j judging, i int, c leakybucket.Charge, d *leakybucket.Decision) {
			if d.Level+c.Cost > c.Limit.Capacity {
				d.Fits, d.Poured, j.states[i] = false, false, j.before[i]
			}
		})}},
	{"pours cost 0 into a full bucket", "cost 0 fits unless full", bugs{rejudge: alsoPour(
		func(c leakybucket.Charge, _ float64) bool { return c.Cost == 0 })}},
	{"pours anything into an empty bucket", "oversize cost never fits", bugs{rejudge: alsoPour(
		func(_ leakybucket.Charge, level float64) bool { return level == 0 })}},
	{"pours a NaN", "cost that is no amount never fits", bugs{rejudge: alsoPour(
		func(c leakybucket.Charge, _ float64) bool { return c.Cost != c.Cost })}},
	{"pours a negative cost", "cost that is no amount never fits", bugs{rejudge: alsoPour(
		func(c leakybucket.Charge, _ float64) bool { return c.Cost < 0 })}},
	{"leaks for the coming second", "waiting as told is enough and needed", bugs{reread: func(c leakybucket.Charge, s *leakybucket.State, now leakybucket.Instant) {
		if now > s.At {
			s.Level = max(0, s.Level-c.Limit.Leak)
		}
	}}},
	{"lowers the level to a lower capacity", "changed limit keeps the level", bugs{reread: func(c leakybucket.Charge, s *leakybucket.State, _ leakybucket.Instant) {
		s.Level = min(s.Level, c.Limit.Capacity)
	}}},
	{"keeps levels in single precision", "model", bugs{rejudge: eachCharge(
		func(j judging, i int, _ leakybucket.Charge, _ *leakybucket.Decision) {
			j.states[i].Level = float64(float32(j.states[i].Level))
		})}},
}

var ceilingMutants = []mutant{
	{"knows no ceiling", "delays", bugs{take: mistake(func(c *leakybucket.Charge) { c.Ceiling = 0 })}},
	{"knows no ceiling", "ceilings", bugs{take: mistake(func(c *leakybucket.Charge) { c.Ceiling = 0 })}},
	{"takes no ceiling for one of 0", "ceilings", bugs{take: mistake(func(c *leakybucket.Charge) {
		if c.Ceiling == 0 && !c.Limit.Oversize(c.Cost) {
			c.Ceiling = math.SmallestNonzeroFloat64
		}
	})}},
	{"lets a ceiling lift the capacity", "ceilings", bugs{take: mistake(func(c *leakybucket.Charge) {
		c.Limit.Capacity = max(c.Limit.Capacity, c.Ceiling)
	})}},
	{"holds the level against the ceiling without the cost", "delays", bugs{take: mistake(func(c *leakybucket.Charge) {
		if c.Ceiling > 0 {
			c.Ceiling += c.Cost
		}
	})}},
	{"knows no ceiling of a probe", "ceilings", bugs{take: mistake(func(c *leakybucket.Charge) {
		if c.Probe {
			c.Ceiling = 0
		}
	})}},
	{"knows no ceiling of several", "ceilings", bugs{take: func(s *reference, t taking) error {
		if len(t.charges) < 2 {
			return s.takeOnce(t)
		}
		return mistake(func(c *leakybucket.Charge) { c.Ceiling = 0 })(s, t)
	}}},
	{"holds all charges to a bucket against the lowest ceiling", "ceilings", bugs{take: func(s *reference, t taking) error {
		return mistake(func(c *leakybucket.Charge) {
			for _, other := range t.charges {
				if other.Key == c.Key && other.Shadow == c.Shadow && other.Ceiling > 0 && (c.Ceiling == 0 || other.Ceiling < c.Ceiling) {
					c.Ceiling = other.Ceiling
				}
			}
		})(s, t)
	}}},
	{"pours what fits a cost of 0 at the ceiling", "ceilings", bugs{take: mistake(func(c *leakybucket.Charge) {
		if c.Cost == 0 {
			c.Ceiling = 0
		}
	})}},
	{"holds a settlement against the ceiling", "ceilings", bugs{recorrect: func(c *correcting) {
		if c.Diff > 0 && c.Charge.Ceiling > 0 {
			c.after.Level = max(c.levelBefore(), min(c.after.Level, c.Charge.Ceiling+c.Charge.Debt))
		}
	}}},
	{"begins no block beneath the capacity", "overflow of a ceiling begins a block", bugs{rejudge: unblock(
		func(j judging, i int, c leakybucket.Charge) bool {
			return j.decisions[i].Level+c.Cost <= c.Limit.Capacity
		})}},
	{"takes what is above the ceiling for oversize", "overflow of a ceiling begins a block", bugs{rejudge: unblock(
		func(_ judging, _ int, c leakybucket.Charge) bool { return c.Ceiling > 0 && c.Cost > c.Ceiling })}},
	{"begins a block above the capacity if there is a ceiling", "overflow of a ceiling begins a block", bugs{rejudge: eachCharge(
		func(j judging, i int, c leakybucket.Charge, d *leakybucket.Decision) {
			if c.Ceiling > 0 && d.BlockedUntil == 0 && !d.Fits && c.Block != nil {
				j.block(i, j.now.Add(lengthOf(c, 0)))
			}
		})}},
}
