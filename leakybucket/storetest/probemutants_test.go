package storetest

import "github.com/caddy-throttle/caddy-throttle/leakybucket"

// mistake is a take that takes each charge for another.
func mistake(as func(c *leakybucket.Charge)) func(*reference, taking) error {
	return func(s *reference, t taking) error {
		charges := append([]leakybucket.Charge(nil), t.charges...)
		for i := range charges {
			as(&charges[i])
		}
		return s.takeOnce(taking{t.ctx, charges, t.decisions})
	}
}

// noHorizon has charges without a debt, so that a store that looks at their
// buckets takes a clock for far back too early.
func noHorizon(c *leakybucket.Charge) { c.Debt = 0 }

var probeMutants = []mutant{
	{"pours a probe", "probe pours nothing", bugs{take: mistake(func(c *leakybucket.Charge) { c.Probe = false })}},
	{"makes a bucket for a probe", "probe pours nothing", bugs{rejudge: eachCharge(
		func(j judging, i int, c leakybucket.Charge, _ *leakybucket.Decision) {
			if c.Probe && j.states[i] == (leakybucket.State{}) {
				j.states[i].At = j.now
			}
		})}},
	{"dates a bucket when it is probed", "probe pours nothing", bugs{rejudge: eachCharge(
		func(j judging, i int, c leakybucket.Charge, d *leakybucket.Decision) {
			if c.Probe && d.Level > 0 {
				j.states[i] = leakybucket.State{Level: d.Level, At: max(j.states[i].At, j.now)}
			}
		})}},
	{"says that a probe was poured", "probe pours nothing", bugs{rejudge: eachCharge(
		func(_ judging, _ int, c leakybucket.Charge, d *leakybucket.Decision) {
			d.Poured = d.Poured || c.Probe && d.Fits
		})}},
	{"says that a probe does not fit", "probe pours nothing", bugs{rejudge: eachCharge(
		func(_ judging, _ int, c leakybucket.Charge, d *leakybucket.Decision) {
			d.Fits = d.Fits && !c.Probe
		})}},
	{"pours a probe that is not alone", "probe refuses what is beside it", bugs{take: func(s *reference, t taking) error {
		if len(t.charges) == 1 {
			return s.takeOnce(t)
		}
		return mistake(func(c *leakybucket.Charge) { c.Probe = false })(s, t)
	}}},
	{"asks probes for themselves", "probe refuses what is beside it", bugs{take: askProbesApart}},
	{"writes what a probe has read", "probe refuses what is beside it", bugs{rejudge: eachCharge(
		func(j judging, i int, c leakybucket.Charge, _ *leakybucket.Decision) {
			if c.Probe {
				j.states[i] = j.before[i]
			}
		})}},
	{"judges a probe without its neighbours in the bucket", "probe refuses what is beside it", bugs{take: mistake(
		func(c *leakybucket.Charge) {
			if c.Probe {
				c.Cost = 0
			}
		})}},
	{"refuses what a shadow probe would", "shadow probe refuses nobody", bugs{take: mistake(
		func(c *leakybucket.Charge) { c.Shadow = c.Shadow && !c.Probe })}},
}

// askProbesApart takes what is to be poured first, and then asks the rest.
func askProbesApart(s *reference, t taking) error {
	for _, probes := range []bool{false, true} {
		var which []int
		var some []leakybucket.Charge
		for i, c := range t.charges {
			if c.Probe == probes {
				which, some = append(which, i), append(some, c)
			}
		}
		decisions := make([]leakybucket.Decision, len(some))
		s.takeOnce(taking{t.ctx, some, decisions})
		for i, d := range decisions {
			t.decisions[which[i]] = d
		}
	}
	return nil
}
