package storetest

import (
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

var clockMutants = []mutant{
	{"fills while the clock is back", "clock a little back", bugs{reread: func(c leakybucket.Charge, s *leakybucket.State, now leakybucket.Instant) {
		if now < s.At {
			s.Level, s.At = s.Level+c.Limit.Leak*s.At.Sub(now).Seconds(), now
		}
	}}},
	{"sets the time of a bucket back", "clock a little back", bugs{rejudge: eachCharge(
		func(j judging, i int, _ leakybucket.Charge, d *leakybucket.Decision) {
			if d.Poured {
				j.states[i].At = j.now
			}
		})}},
	{"never sets the time of a bucket back", "clock far back", bugs{rejudge: eachCharge(
		func(j judging, i int, _ leakybucket.Charge, _ *leakybucket.Decision) {
			j.states[i].At = max(j.states[i].At, j.before[i].At)
		})}},
	{"sets the time of a bucket back with a pour only", "clock far back with a full bucket", bugs{rejudge: eachCharge(
		func(j judging, i int, _ leakybucket.Charge, d *leakybucket.Decision) {
			if !d.Poured {
				j.states[i] = j.before[i]
			}
		})}},
	{"tells time in milliseconds", "clock a little back", bugs{rejudge: eachCharge(
		func(_ judging, _ int, _ leakybucket.Charge, d *leakybucket.Decision) {
			d.At -= d.At % 1000
		})}},
}
