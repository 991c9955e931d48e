package storetest

import (
	"strconv"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// giveAllBack gives back what was poured, whoever came since.
func giveAllBack(which func(c *correcting) bool) func(*correcting) {
	return func(c *correcting) {
		if c.Cancel && c.Was.Poured && which(c) {
			c.after.Level = max(0, c.levelBefore()-c.Charge.Cost)
			c.after.At = max(c.before.At, c.now)
		}
	}
}

var cancelMutants = []mutant{
	{"cancels nothing", "cancelled charge gives all back", bugs{settle: misread(func(of *leakybucket.Settlement) {
		if of.Cancel {
			of.Cancel, of.Diff = false, 0
		}
	})}},
	{"takes off what leaked when it cancels", "cancelled charge gives all back", bugs{settle: misread(func(of *leakybucket.Settlement) {
		if of.Cancel {
			of.Cancel, of.Diff = false, -of.Charge.Cost
		}
	})}},
	{"settles what it cancels", "cancelled charge gives all back", bugs{settle: misread(func(of *leakybucket.Settlement) { of.Cancel = false })}},
	{"lets nothing leak from what is left", "cancelled charge gives all back", bugs{recorrect: func(c *correcting) {
		if c.Cancel && c.after.Level < c.levelBefore() {
			c.after.Level = c.Was.Level
		}
	}}},
	{"gives back below empty when it cancels", "cancelled charge gives all back", bugs{recorrect: func(c *correcting) {
		if c.Cancel && c.after.Level == 0 && c.before.At == c.Was.At {
			c.after.Level = c.before.Level - c.Charge.Limit.Leak*c.now.Sub(c.before.At).Seconds() - c.Charge.Cost
		}
	}}},
	{"does not know its own level in 17 digits", "cancelled to the last digit", bugs{rejudge: eachCharge(
		func(j judging, i int, _ leakybucket.Charge, d *leakybucket.Decision) {
			if d.Poured {
				j.states[i].Level, _ = strconv.ParseFloat(strconv.FormatFloat(j.states[i].Level, 'g', 15, 64), 64)
			}
		})}},
	{"tells the level in 15 digits", "cancelled to the last digit", bugs{rejudge: eachCharge(
		func(_ judging, _ int, _ leakybucket.Charge, d *leakybucket.Decision) {
			d.Level, _ = strconv.ParseFloat(strconv.FormatFloat(d.Level, 'g', 15, 64), 64)
		})}},
	{"gives all back whoever came", "cancelled after others came", bugs{recorrect: giveAllBack(func(c *correcting) bool {
		return c.before != (bucket{})
	})}},
	{"looks at the level alone", "cancelled after others came", bugs{recorrect: giveAllBack(func(c *correcting) bool {
		return c.before.Level == c.Was.Level+c.Charge.Cost
	})}},
	{"looks at the time alone", "cancelled after others came", bugs{recorrect: giveAllBack(func(c *correcting) bool {
		return c.before.At == c.Was.At
	})}},
	{"looks whether the level is as time alone would leave it", "cancelled after others came", bugs{recorrect: giveAllBack(func(c *correcting) bool {
		poured := leakybucket.State{Level: c.Was.Level + c.Charge.Cost, At: c.Was.At}
		return c.before != (bucket{}) && near(c.Charge.Limit, c.levelBefore(), c.Charge.Limit.Level(poured, c.now))
	})}},
	{"cancels the enforced charge for a shadow one", "cancelled after others came", bugs{settle: misread(func(of *leakybucket.Settlement) {
		of.Charge.Shadow = of.Charge.Shadow && !of.Cancel
	})}},
	{"cancels from what all have read", "several cancelled together", bugs{settle: correctAllThenWrite}},
	{"cancels the first only", "several cancelled together", bugs{settle: func(s *reference, all settling) error {
		cancelled := false
		return misread(func(of *leakybucket.Settlement) {
			if of.Cancel && cancelled {
				of.Cancel, of.Diff = false, 0
			}
			cancelled = cancelled || of.Cancel
		})(s, all)
	}}},
	{"cancels the last first", "several cancelled together", bugs{settle: func(s *reference, all settling) error {
		for i := range all.settlements {
			last := len(all.settlements) - i
			s.settleEach(settling{all.ctx, all.settlements[last-1 : last]})
		}
		return nil
	}}},
	{"takes all for cancelled if one is", "several cancelled together", bugs{settle: func(s *reference, all settling) error {
		cancelled := false
		return misread(func(of *leakybucket.Settlement) {
			cancelled = cancelled || of.Cancel
			of.Cancel = cancelled
		})(s, all)
	}}},
	{"cancels what was never poured", "cancelled without a pour", bugs{settle: misread(func(of *leakybucket.Settlement) { of.Was.Poured = true })}},
	{"cancels what a probe asked for", "cancelled without a pour", bugs{settle: misread(func(of *leakybucket.Settlement) {
		of.Was.Poured = of.Was.Poured || of.Charge.Probe
	})}},
	{"makes a bucket to cancel in", "cancelled without a pour", bugs{recorrect: func(c *correcting) {
		c.keep = c.keep || c.Diff > 0
	}}},
	{"pours the diff of what is cancelled, where no bucket is", "cancelled without a pour", bugs{settle: misread(func(of *leakybucket.Settlement) {
		of.Cancel = of.Cancel && of.Charge.Key != "gone"
	})}},
}
