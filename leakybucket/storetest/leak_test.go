package storetest

import (
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// underAnotherLeak is a rejudge that sees to the buckets which were asked under another
// leak, and neither poured into nor blocked.
func underAnotherLeak(f func(j judging, i int, c leakybucket.Charge, d *leakybucket.Decision)) func(judging) {
	return eachCharge(func(j judging, i int, c leakybucket.Charge, d *leakybucket.Decision) {
		if before := j.before[i]; !d.Poured && !d.Began && before.Leak != 0 && before.Leak != c.Limit.Leak {
			f(j, i, c, d)
		}
	})
}

var leakMutants = []mutant{
	{"leaks as the charge says since the last write", "changed leak does not count backwards", bugs{reread: func(_ leakybucket.Charge, s *leakybucket.State, _ leakybucket.Instant) {
		s.Leak = 0
	}}},
	{"leaks for ever as the first charge said", "changed leak does not count backwards", bugs{rejudge: eachCharge(
		func(j judging, i int, _ leakybucket.Charge, _ *leakybucket.Decision) {
			if j.before[i].Leak != 0 {
				j.states[i].Leak = j.before[i].Leak
			}
		})}},
	{"keeps the leak when it pours several", "changed leak does not count backwards", bugs{rejudge: eachCharge(
		func(j judging, i int, _ leakybucket.Charge, d *leakybucket.Decision) {
			if d.Poured && len(j.charges) > 1 && j.before[i].Leak != 0 {
				j.states[i].Leak = j.before[i].Leak
			}
		})}},
	{"writes no changed leak before it pours", "changed leak is written when it is asked", bugs{rejudge: underAnotherLeak(
		func(j judging, i int, _ leakybucket.Charge, _ *leakybucket.Decision) { j.states[i] = j.before[i] })}},
	{"writes no changed leak for a probe", "changed leak is written when it is asked", bugs{rejudge: underAnotherLeak(
		func(j judging, i int, c leakybucket.Charge, _ *leakybucket.Decision) {
			if c.Probe {
				j.states[i] = j.before[i]
			}
		})}},
	{"writes no changed leak for what is held back", "changed leak is written when it is asked", bugs{rejudge: underAnotherLeak(
		func(j judging, i int, c leakybucket.Charge, d *leakybucket.Decision) {
			if d.Fits && !c.Probe {
				j.states[i] = j.before[i]
			}
		})}},
	{"writes a changed leak a second after the last write only", "changed leak is written when it is asked", bugs{rejudge: underAnotherLeak(
		func(j judging, i int, _ leakybucket.Charge, _ *leakybucket.Decision) {
			if j.now-j.before[i].At < 1e6 {
				j.states[i] = j.before[i]
			}
		})}},
	{"writes a changed leak and not the level with it", "changed leak is written when it is asked", bugs{rejudge: underAnotherLeak(
		func(j judging, i int, c leakybucket.Charge, _ *leakybucket.Decision) {
			if j.states[i] != j.before[i] {
				j.states[i] = j.before[i]
				j.states[i].Leak = c.Limit.Leak
			}
		})}},
	{"settles as the charge leaks since the last write", "changed leak is written when it is settled", bugs{recorrect: func(c *correcting) {
		c.before.Leak = 0
		c.after.State = c.Apply(c.before.State, c.now)
	}}},
	{"keeps the leak when it settles", "changed leak is written when it is settled", bugs{recorrect: func(c *correcting) {
		c.after.Leak = c.before.Leak
	}}},
	{"keeps the leak when it cancels", "changed leak is written when it is settled", bugs{recorrect: func(c *correcting) {
		if c.Cancel {
			c.after.Leak = c.before.Leak
		}
	}}},
	{"keeps the leak when a block begins", "changed leak is written when a block begins", bugs{rejudge: eachCharge(
		func(j judging, i int, _ leakybucket.Charge, d *leakybucket.Decision) {
			if before := j.before[i]; d.Began {
				j.states[i].Level, j.states[i].At, j.states[i].Leak = before.Level, before.At, before.Leak
			}
		})}},
	{"forgets by the leak before", "nothing live under a changed leak is forgotten", bugs{take: func(s *reference, t taking) error {
		forget := make(map[name]leakybucket.Instant)
		for n, b := range s.buckets {
			forget[n] = b.forget
		}
		err := s.takeOnce(t)
		for i, c := range t.charges {
			if b := s.buckets[s.name(c)]; b != nil && !t.decisions[i].Poured && forget[s.name(c)] != 0 {
				b.forget = forget[s.name(c)]
			}
		}
		return err
	}}},
}
