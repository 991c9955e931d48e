package storetest

import (
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// relay is a take whose charges have another ladder.
func relay(as func(c leakybucket.Charge) *leakybucket.Ladder) func(*reference, taking) error {
	return mistake(func(c *leakybucket.Charge) {
		if c.Block != nil {
			c.Block = as(*c)
		}
	})
}

// block blocks the bucket of the i-th charge, and says that the charge did.
func (j judging) block(i int, until leakybucket.Instant) {
	j.states[i].BlockedUntil = until
	d := &j.decisions[i]
	d.Fits, d.Poured, d.Began, d.BlockedUntil = false, false, true, until
}

// climbed is a rejudge that sees to the step of a block that began.
func climbed(step func(before leakybucket.State, pause time.Duration, c leakybucket.Charge) uint8) func(judging) {
	return eachCharge(func(j judging, i int, c leakybucket.Charge, d *leakybucket.Decision) {
		if !d.Began || len(c.Block.Steps) == 0 || j.before[i].BlockedUntil == 0 {
			return
		}
		last := uint8(len(c.Block.Steps) - 1)
		j.states[i].Step = min(last, step(j.before[i], j.now.Sub(j.before[i].BlockedUntil), c))
		j.block(i, j.now.Add(c.Block.Steps[j.states[i].Step]))
	})
}

func lengthOf(c leakybucket.Charge, step uint8) time.Duration {
	return c.Block.Steps[min(int(step), len(c.Block.Steps)-1)]
}

var blockMutants = []mutant{
	{"begins no block", "overflow begins a block", bugs{take: relay(func(leakybucket.Charge) *leakybucket.Ladder { return nil })}},
	{"makes a block longer while it lasts", "overflow begins a block", bugs{rejudge: eachCharge(
		func(j judging, i int, c leakybucket.Charge, d *leakybucket.Decision) {
			if d.BlockedUntil > 0 && !d.Began {
				d.BlockedUntil = j.now.Add(lengthOf(c, 0))
				j.states[i].BlockedUntil = d.BlockedUntil
			}
		})}},
	{"refuses at the instant a block ends", "overflow begins a block", bugs{reread: func(c leakybucket.Charge, s *leakybucket.State, now leakybucket.Instant) {
		if s.BlockedUntil == now {
			s.BlockedUntil++
		}
	}}},
	{"lets in what costs nothing while a block runs", "overflow begins a block", bugs{rejudge: eachCharge(
		func(_ judging, _ int, c leakybucket.Charge, d *leakybucket.Decision) {
			if d.BlockedUntil > 0 && c.Cost == 0 {
				d.Fits, d.Poured, d.BlockedUntil = true, true, 0
			}
		})}},
	{"says that it began every block it found", "overflow begins a block", bugs{rejudge: eachCharge(
		func(_ judging, _ int, _ leakybucket.Charge, d *leakybucket.Decision) { d.Began = d.BlockedUntil != 0 })}},
	{"does not say until when", "overflow begins a block", bugs{rejudge: eachCharge(
		func(_ judging, _ int, _ leakybucket.Charge, d *leakybucket.Decision) { d.BlockedUntil = 0 })}},
	{"blocks all buckets of a zone", "overflow begins a block", bugs{rejudge: eachCharge(
		func(j judging, i int, c leakybucket.Charge, d *leakybucket.Decision) {
			if j.before[i] == (leakybucket.State{}) && c.Key == "other" {
				j.block(i, j.now.Add(lengthOf(c, 0)))
			}
		})}},
	{"leaves what it was given of a block", "overflow begins a block", bugs{take: func(s *reference, t taking) error {
		given := append([]leakybucket.Decision(nil), t.decisions...)
		err := s.takeOnce(t)
		for i := range t.decisions {
			if d := &t.decisions[i]; d.BlockedUntil == 0 {
				d.BlockedUntil = given[i].BlockedUntil
			}
		}
		return err
	}}},
	{"leaves what it was given of a beginning", "worked example", bugs{take: func(s *reference, t taking) error {
		given := append([]leakybucket.Decision(nil), t.decisions...)
		err := s.takeOnce(t)
		for i := range t.decisions {
			t.decisions[i].Began = t.decisions[i].Began || given[i].Began
		}
		return err
	}}},

	{"blocks for a cost that can never fit", "what never fits never blocks", bugs{rejudge: eachCharge(
		func(j judging, i int, c leakybucket.Charge, d *leakybucket.Decision) {
			if c.Block != nil && c.Cost > c.Limit.Capacity {
				j.block(i, j.now+1e6)
			}
		})}},
	{"blocks for a cost that is no amount", "what never fits never blocks", bugs{rejudge: eachCharge(
		func(j judging, i int, c leakybucket.Charge, d *leakybucket.Decision) {
			if c.Block != nil && !(c.Cost >= 0) {
				j.block(i, j.now+1e6)
			}
		})}},
	{"blocks for what can never fit together", "what never fits never blocks", bugs{rejudge: eachCharge(
		func(j judging, i int, c leakybucket.Charge, d *leakybucket.Decision) {
			if c.Block != nil && !d.Fits && c.Cost <= c.Limit.Capacity && len(j.charges) > 1 {
				j.block(i, j.now+1e6)
			}
		})}},

	{"does not say which step", "ladder climbs", bugs{rejudge: eachCharge(
		func(_ judging, _ int, _ leakybucket.Charge, d *leakybucket.Decision) { d.Step = 0 })}},
	{"says a step of no block", "model", bugs{rejudge: eachCharge(
		func(j judging, i int, _ leakybucket.Charge, d *leakybucket.Decision) { d.Step = j.states[i].Step })}},
	{"never climbs", "ladder climbs", bugs{take: relay(func(c leakybucket.Charge) *leakybucket.Ladder {
		return &leakybucket.Ladder{Steps: c.Block.Steps[:min(1, len(c.Block.Steps))]}
	})}},
	{"climbs always", "ladder climbs", bugs{rejudge: climbed(
		func(before leakybucket.State, _ time.Duration, _ leakybucket.Charge) uint8 { return before.Step + 1 })}},
	{"climbs by the length of the first step", "ladder climbs", bugs{rejudge: climbed(
		func(before leakybucket.State, pause time.Duration, c leakybucket.Charge) uint8 {
			if pause < lengthOf(c, 0) {
				return before.Step + 1
			}
			return 0
		})}},
	{"climbs by the length of the next step", "ladder climbs", bugs{rejudge: climbed(
		func(before leakybucket.State, pause time.Duration, c leakybucket.Charge) uint8 {
			if pause < lengthOf(c, before.Step+1) {
				return before.Step + 1
			}
			return 0
		})}},
	{"climbs when it may have forgotten", "ladder climbs", bugs{rejudge: climbed(
		func(before leakybucket.State, pause time.Duration, c leakybucket.Charge) uint8 {
			if pause <= lengthOf(c, before.Step) {
				return before.Step + 1
			}
			return 0
		})}},
	{"climbs down by one", "ladder climbs", bugs{rejudge: climbed(
		func(before leakybucket.State, pause time.Duration, c leakybucket.Charge) uint8 {
			if pause < lengthOf(c, before.Step) {
				return before.Step + 1
			}
			return max(before.Step, 1) - 1
		})}},
	{"starts again from the top", "ladder climbs", bugs{rejudge: climbed(
		func(before leakybucket.State, pause time.Duration, c leakybucket.Charge) uint8 {
			if pause < lengthOf(c, before.Step) && int(before.Step) < len(c.Block.Steps)-1 {
				return before.Step + 1
			}
			return 0
		})}},
	{"climbs two steps", "ladder climbs", bugs{rejudge: climbed(
		func(before leakybucket.State, pause time.Duration, c leakybucket.Charge) uint8 {
			if pause < lengthOf(c, before.Step) {
				return before.Step + 2
			}
			return 0
		})}},

	{"blocks for a minute without steps", "block until empty", bugs{take: relay(func(c leakybucket.Charge) *leakybucket.Ladder {
		if len(c.Block.Steps) == 0 {
			return &leakybucket.Ladder{Steps: []time.Duration{time.Minute}}
		}
		return c.Block
	})}},
	{"blocks until the cost fits", "block until empty", bugs{rejudge: eachCharge(
		func(j judging, i int, c leakybucket.Charge, d *leakybucket.Decision) {
			if d.Began && len(c.Block.Steps) == 0 {
				j.block(i, j.now.Add(c.Limit.TimeToFit(d.Level, c.Cost)))
			}
		})}},
	{"blocks for as long as a full bucket takes to empty", "block until empty", bugs{rejudge: eachCharge(
		func(j judging, i int, c leakybucket.Charge, d *leakybucket.Decision) {
			if d.Began && len(c.Block.Steps) == 0 {
				j.block(i, j.now.Add(c.Limit.TimeToEmpty(c.Limit.Capacity)))
			}
		})}},
	{"blocks until empty however long that is", "block until empty", bugs{rejudge: eachCharge(
		func(j judging, i int, c leakybucket.Charge, d *leakybucket.Decision) {
			if d.Began && len(c.Block.Steps) == 0 {
				j.block(i, j.now.Add(c.Limit.TimeToEmpty(d.Level)))
			}
		})}},
	{"counts milliseconds until empty", "block until empty", bugs{rejudge: eachCharge(
		func(j judging, i int, c leakybucket.Charge, d *leakybucket.Decision) {
			if d.Began && len(c.Block.Steps) == 0 {
				j.block(i, d.BlockedUntil/1000*1000)
			}
		})}},
	{"blocks without the debt", "block until empty", bugs{take: mistake(noHorizon)}},

	{"blocks who asked for none", "without a block none is heeded", bugs{take: mistake(func(c *leakybucket.Charge) {
		if c.Block == nil && !c.Limit.Oversize(c.Cost) {
			c.Block = new(leakybucket.Ladder)
		}
	})}},
	{"heeds a block that was not asked for", "without a block none is heeded", bugs{rejudge: eachCharge(
		func(j judging, i int, c leakybucket.Charge, d *leakybucket.Decision) {
			if c.Block == nil && j.before[i].BlockedUntil > j.now {
				d.Fits, d.Poured, d.BlockedUntil = false, false, j.before[i].BlockedUntil
				j.states[i] = j.before[i]
			}
		})}},
	{"lifts a block that was not asked for", "without a block none is heeded", bugs{rejudge: eachCharge(
		func(j judging, i int, c leakybucket.Charge, d *leakybucket.Decision) {
			if c.Block == nil && d.Poured {
				j.states[i].BlockedUntil = 0
			}
		})}},

	{"knows its step in any ladder", "changed ladder", bugs{rejudge: eachCharge(
		func(j judging, i int, c leakybucket.Charge, d *leakybucket.Decision) {
			if last := j.before[i]; d.Began && int(last.Step) >= len(c.Block.Steps) && len(c.Block.Steps) > 0 {
				j.states[i].Step = last.Step + 1
			}
		})}},
	{"keeps a block that the ladder no longer has", "changed ladder", bugs{rejudge: keepAhead}},

	{"keeps a block however far ahead it is", "clock back while a block runs", bugs{rejudge: keepAhead}},
	{"takes up a block again when the clock has caught up", "clock back while a block runs", bugs{rejudge: eachCharge(
		func(j judging, i int, _ leakybucket.Charge, d *leakybucket.Decision) {
			if !d.Began && !d.Poured {
				j.states[i].BlockedUntil, j.states[i].Step = j.before[i].BlockedUntil, j.before[i].Step
			}
		})}},
	{"takes up a block again after a settlement", "clock back while a block runs", bugs{recorrect: func(c *correcting) {
		c.after.BlockedUntil, c.after.Step = c.before.BlockedUntil, c.before.Step
	}}},
	{"lifts a block when the clock is back", "clock back while a block runs", bugs{reread: func(_ leakybucket.Charge, s *leakybucket.State, now leakybucket.Instant) {
		if s.At > now || s.BlockedUntil.Sub(now) >= time.Minute {
			s.BlockedUntil = 0
		}
	}}},
}

// keepAhead keeps blocks that are further ahead than they can be.
func keepAhead(j judging) {
	for i := range j.charges {
		if before := j.before[i]; before.BlockedUntil > j.now && before.BlockedUntil != j.states[i].BlockedUntil {
			j.states[i] = before
			j.decisions[i].Fits, j.decisions[i].Poured, j.decisions[i].Began = false, false, false
			j.decisions[i].BlockedUntil = before.BlockedUntil
		}
	}
}

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
	{"keeps the block that the first charge to a bucket begins only", "block of the same bucket twice", bugs{rejudge: eachCharge(
		func(j judging, i int, c leakybucket.Charge, d *leakybucket.Decision) {
			for k := range i {
				if d.Began && j.charges[k].Key == c.Key {
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
