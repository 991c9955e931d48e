package storetest

import (
	"math"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

var blockForgettingMutants = []mutant{
	{"forgets a blocked bucket when it is empty", "nothing blocked is forgotten", bugs{noted: forgetEmpty}},
	{"forgets a blocked bucket when it is empty", "drops blocked buckets last", bugs{noted: forgetEmpty}},
	{"forgets a block when it is over", "nothing blocked is forgotten", bugs{noted: func(c leakybucket.Charge, s leakybucket.State) leakybucket.Instant {
		return max(c.Limit.Forget(s), s.BlockedUntil)
	}}},
	{"forgets a block that is over by the first step", "nothing blocked is forgotten", bugs{noted: func(c leakybucket.Charge, s leakybucket.State) leakybucket.Instant {
		s.Step = 0
		return c.Forget(&s)
	}}},
	{"keeps nothing that is empty", "nothing blocked is forgotten", bugs{rejudge: eachCharge(
		func(j judging, i int, _ leakybucket.Charge, d *leakybucket.Decision) {
			if j.states[i].Level == 0 {
				j.states[i] = j.before[i]
			}
		})}},
	{"forgets a block when a probe begins it", "nothing blocked is forgotten", bugs{noted: func(c leakybucket.Charge, s leakybucket.State) leakybucket.Instant {
		if c.Probe {
			return c.Limit.Forget(s)
		}
		return c.Forget(&s)
	}}},
	{"forgets a block when it settles", "nothing blocked is forgotten", bugs{recorrect: func(c *correcting) {
		c.after.forget = c.Charge.Limit.Forget(c.after.State)
	}}},
	{"never forgets what was blocked", "blocked buckets disappear", bugs{noted: func(c leakybucket.Charge, s leakybucket.State) leakybucket.Instant {
		if s.BlockedUntil > 0 {
			return math.MaxInt64
		}
		return c.Forget(&s)
	}}},
	{"forgets what is blocked and was never poured into", "nothing blocked is forgotten", bugs{noted: func(c leakybucket.Charge, s leakybucket.State) leakybucket.Instant {
		if s.Level == 0 {
			return 0
		}
		return c.Forget(&s)
	}}},
}

func forgetEmpty(c leakybucket.Charge, s leakybucket.State) leakybucket.Instant {
	return c.Limit.Forget(s)
}
