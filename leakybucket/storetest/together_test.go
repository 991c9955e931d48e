package storetest

import (
	"strings"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
)

var togetherMutants = []mutant{
	{"asks each bucket for itself", "all or none", bugs{take: func(s *reference, t taking) error {
		for i := range t.charges {
			s.takeOnce(taking{t.ctx, t.charges[i : i+1], t.decisions[i : i+1]})
		}
		return nil
	}}},
	{"pours before one that refuses", "all or none", bugs{rejudge: func(j judging) {
		for i, c := range j.charges {
			if !j.decisions[i].Fits {
				return
			}
			j.states[i] = leakybucket.State{Level: j.decisions[i].Level + c.Cost, At: j.now}
		}
	}}},
	{"judges the same bucket for each charge", "same bucket twice", bugs{rejudge: eachCharge(
		func(j judging, i int, c leakybucket.Charge, d *leakybucket.Decision) {
			j.states[i], *d = c.Limit.Take(j.before[i], c.Cost, j.now)
		})}},
	{"keeps the last write to the same bucket", "same bucket twice", bugs{rejudge: eachCharge(
		func(j judging, i int, c leakybucket.Charge, d *leakybucket.Decision) {
			if d.Poured {
				j.states[i].Level = c.Limit.Level(j.before[i], j.now) + c.Cost
			}
		})}},
	{"takes eight charges at most", "many charges", bugs{take: func(s *reference, t taking) error {
		n := min(len(t.charges), 8)
		return s.takeOnce(taking{t.ctx, t.charges[:n], t.decisions[:n]})
	}}},
	{"pours after it was cancelled", "cancelled context", bugs{take: func(s *reference, t taking) error {
		s.takeOnce(t)
		return t.ctx.Err()
	}}},
	{"charges what is in the arguments later", "arguments are the caller's again", bugs{take: later((*reference).takeOnce)}},
	{"answers who has left", "arguments are the caller's again", bugs{take: later(func(s *reference, t taking) error {
		t.decisions[0] = leakybucket.Decision{}
		return nil
	})}},
	{"settles what is in the arguments later", "arguments are the caller's again", bugs{settle: settledLater()}},

	{"runs zone and key together", "keys are bytes", bugs{rename: func(n *name) { n.zone, n.key = "", n.zone+n.key }}},
	{"cleans slashes", "keys are bytes", bugs{rename: func(n *name) { n.key = strings.ReplaceAll(n.key, "//", "/") }}},
	{"ends a key at a NUL", "keys are bytes", bugs{rename: func(n *name) { n.key, _, _ = strings.Cut(n.key, "\x00") }}},
	{"folds case", "keys are bytes", bugs{rename: func(n *name) { n.key = strings.ToLower(n.key) }}},
	{"makes a key valid UTF-8", "keys are bytes", bugs{rename: func(n *name) { n.key = strings.ToValidUTF8(n.key, "\ufffd") }}},
	{"trims a key", "keys are bytes", bugs{rename: func(n *name) { n.key = strings.TrimRight(n.key, " ") }}},
	{"cuts a long key", "keys are bytes", bugs{rename: func(n *name) { n.key = n.key[:min(len(n.key), 10_000)] }}},

	{"shares buckets between shadow and enforced", "shadow has buckets of its own", bugs{rename: func(n *name) { n.shadow = false }}},
	{"refuses what shadow would", "shadow refuses nobody", bugs{rejudge: func(j judging) {
		for i, c := range j.charges {
			if c.Shadow && !j.decisions[i].Fits {
				copy(j.states, j.before)
				for k := range j.decisions {
					j.decisions[k].Poured = false
				}
			}
		}
	}}},
	{"judges each shadow for itself", "shadow is poured together", bugs{rejudge: eachCharge(
		func(j judging, i int, c leakybucket.Charge, d *leakybucket.Decision) {
			enforced, _ := store.Fit(j.charges, j.decisions)
			if c.Shadow && enforced && !c.Probe {
				j.states[i], *d = c.Limit.Take(j.before[i], c.Cost, j.now)
			}
		})}},
	{"pours shadow over the capacity", "shadow refuses nobody", bugs{rejudge: alsoPour(
		func(c leakybucket.Charge, _ float64) bool { return c.Shadow && !c.Limit.Oversize(c.Cost) })}},
	{"pours shadow beside a refusal", "shadow is not poured beside a refusal", bugs{rejudge: eachCharge(
		func(j judging, i int, c leakybucket.Charge, d *leakybucket.Decision) {
			if c.Shadow {
				j.states[i], *d = c.Limit.Take(j.before[i], c.Cost, j.now)
			}
		})}},
}

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
		func(c *leakybucket.Charge) {
			if c.Probe {
				c.Shadow = false
			}
		})}},
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

// later returns a take that does what is left of a call whose context has ended in the next one.
func later(do func(*reference, taking) error) func(*reference, taking) error {
	var left []taking
	return func(s *reference, t taking) error {
		for _, late := range left {
			_ = do(s, late)
		}
		if left = nil; t.ctx.Err() != nil {
			left = append(left, t)
			return t.ctx.Err()
		}
		return s.takeOnce(t)
	}
}

// settledLater is later for a settle.
func settledLater() func(*reference, settling) error {
	var left []settling
	return func(s *reference, all settling) error {
		for _, late := range left {
			_ = s.settleEach(late)
		}
		if left = nil; all.ctx.Err() != nil {
			left = append(left, all)
			return all.ctx.Err()
		}
		return s.settleEach(all)
	}
}
