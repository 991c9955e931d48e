package storetest

import (
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// unblock leaves the blocks as they were of the charges that began one.
func unblock(which func(j judging, i int, c leakybucket.Charge) bool) func(judging) {
	return eachCharge(func(j judging, i int, c leakybucket.Charge, d *leakybucket.Decision) {
		if d.Began && which(j, i, c) {
			j.states[i].BlockedUntil, j.states[i].Step = j.before[i].BlockedUntil, j.before[i].Step
			d.Began, d.BlockedUntil = false, 0
		}
	})
}

var blockTogetherMutants = []mutant{
	{"blocks for the first only", "each of many blocks its own bucket", bugs{rejudge: unblock(
		func(j judging, i int, _ leakybucket.Charge) bool {
			for k := range i {
				if j.decisions[k].Began {
					return true
				}
			}
			return false
		})}},
	{"blocks only if nothing beside it is refused", "each of many blocks its own bucket", bugs{rejudge: unblock(
		func(j judging, i int, _ leakybucket.Charge) bool { return len(j.charges) > 1 })}},
	{"blocks all if one overflows", "each of many blocks its own bucket", bugs{rejudge: func(j judging) {
		for i, c := range j.charges {
			if c.Block != nil && j.decisions[i].Fits && !j.decisions[i].Poured && !c.Probe {
				j.block(i, j.now.Add(time.Minute))
			}
		}
	}}},
	{"blocks all by the first ladder", "each of many blocks its own bucket", bugs{take: func(s *reference, t taking) error {
		var first *leakybucket.Ladder
		return mistake(func(c *leakybucket.Charge) {
			if first == nil {
				first = c.Block
			}
			if c.Block != nil {
				c.Block = first
			}
		})(s, t)
	}}},
	{"pours beside what is blocked", "blocked bucket beside others", bugs{rejudge: eachCharge(
		func(j judging, i int, c leakybucket.Charge, d *leakybucket.Decision) {
			for k := range j.decisions {
				if d.Fits && !d.Poured && !c.Probe && j.decisions[k].BlockedUntil != 0 && !j.decisions[k].Began {
					d.Poured, j.states[i] = true, leakybucket.State{Level: d.Level + c.Cost, At: j.now}
				}
			}
		})}},
	{"says that what is beside a block does not fit", "blocked bucket beside others", bugs{rejudge: eachCharge(
		func(j judging, _ int, _ leakybucket.Charge, d *leakybucket.Decision) {
			for k := range j.decisions {
				d.Fits = d.Fits && j.decisions[k].BlockedUntil == 0
			}
		})}},
	{"begins a block for each charge to a bucket", "block of the same bucket twice", bugs{rejudge: eachCharge(
		func(j judging, i int, c leakybucket.Charge, d *leakybucket.Decision) {
			d.Began = d.Began || d.BlockedUntil != 0 && j.before[i].BlockedUntil <= j.now
		})}},
	{"pours over a block that a later charge begins", "block of the same bucket twice", bugs{rejudge: eachCharge(
		func(j judging, i int, c leakybucket.Charge, d *leakybucket.Decision) {
			for k := range i {
				if d.Began && j.decisions[k].Poured && j.charges[k].Key == c.Key {
					j.states[k] = leakybucket.State{Level: j.states[k].Level, At: j.now}
					j.states[i] = j.states[k]
				}
			}
		})}},

	{"blocks no shadow", "shadow blocks apart", bugs{rejudge: unblock(
		func(_ judging, _ int, c leakybucket.Charge) bool { return c.Shadow })}},
	{"refuses what a shadow block would", "shadow blocks apart", bugs{take: mistake(func(c *leakybucket.Charge) {
		if c.Block != nil {
			c.Shadow = false
		}
	})}},
	{"blocks shadow and enforced together", "shadow blocks apart", bugs{rejudge: func(j judging) {
		for i, c := range j.charges {
			for k, other := range j.charges {
				if c.Key == other.Key && c.Shadow && !other.Shadow && j.decisions[i].Began && !j.decisions[k].Began {
					j.states[k].BlockedUntil = j.states[i].BlockedUntil
				}
			}
		}
	}}},
	{"begins no block for a probe", "probe begins a block", bugs{rejudge: unblock(
		func(_ judging, _ int, c leakybucket.Charge) bool { return c.Probe })}},
	{"does not keep the block that a probe begins", "probe begins a block", bugs{rejudge: eachCharge(
		func(j judging, i int, c leakybucket.Charge, _ *leakybucket.Decision) {
			if c.Probe {
				j.states[i] = j.before[i]
			}
		})}},
	{"lets probes past a block", "probe begins a block", bugs{take: mistake(func(c *leakybucket.Charge) {
		if c.Probe {
			c.Block = nil
		}
	})}},

	{"unblocks when it settles", "settling neither blocks nor unblocks", bugs{recorrect: func(c *correcting) { c.after.BlockedUntil = 0 }}},
	{"unblocks when it gives back", "settling neither blocks nor unblocks", bugs{recorrect: func(c *correcting) {
		if c.after.Level < c.levelBefore() {
			c.after.BlockedUntil = min(c.after.BlockedUntil, c.now)
		}
	}}},
	{"forgets the step when it settles", "settling neither blocks nor unblocks", bugs{recorrect: func(c *correcting) { c.after.Step = 0 }}},
	{"blocks what it settles above the capacity", "settling neither blocks nor unblocks", bugs{recorrect: func(c *correcting) {
		if c.Charge.Block != nil && c.after.Level > c.Charge.Limit.Capacity && c.after.BlockedUntil < c.now {
			c.after.BlockedUntil = c.now.Add(time.Minute)
		}
	}}},
	{"keeps the end of a block in milliseconds", "model", bugs{rejudge: eachCharge(
		func(j judging, i int, _ leakybucket.Charge, d *leakybucket.Decision) {
			d.BlockedUntil -= d.BlockedUntil % 1000
			j.states[i].BlockedUntil -= j.states[i].BlockedUntil % 1000
		})}},

	{"checks, then acts", "blocks under contention", bugs{take: checkThenAct}},
	{"asks one by one and pours one by one", "blocks under contention", bugs{take: askThenPour}},
}
