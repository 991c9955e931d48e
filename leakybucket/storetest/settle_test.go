package storetest

import (
	"math"
	"strconv"
	"strings"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
)

// misread is a settle that takes each settlement for another.
func misread(as func(of *leakybucket.Settlement)) func(*reference, settling) error {
	return func(s *reference, all settling) error {
		settlements := append([]leakybucket.Settlement(nil), all.settlements...)
		for i := range settlements {
			as(&settlements[i])
		}
		return s.settleEach(settling{all.ctx, settlements})
	}
}

// givesBack is what a settlement gives back, if it gives back anything.
func (c *correcting) givesBack() float64 {
	age := max(0, c.now.Sub(c.Was.At).Seconds())
	return max(0, min(-c.Diff, c.Charge.Cost)-c.Charge.Limit.Leak*age)
}

func (c *correcting) levelBefore() float64 { return c.Charge.Limit.Level(c.before.State, c.now) }

var settleMutants = []mutant{
	{"settles up to any level", "settled upwards", bugs{settle: misread(func(of *leakybucket.Settlement) { of.Charge.Debt = 1e15 })}},
	{"settles up to the capacity", "settled upwards", bugs{settle: misread(func(of *leakybucket.Settlement) { of.Charge.Debt = 0 })}},
	{"settles up to the debt alone", "settled upwards", bugs{recorrect: func(c *correcting) {
		if c.Diff > 0 {
			c.after.Level = max(c.levelBefore(), min(c.after.Level, c.Charge.Debt))
		}
	}}},
	{"lowers a level above what may be owed", "settled upwards", bugs{recorrect: func(c *correcting) {
		if c.Diff > 0 {
			c.after.Level = min(c.after.Level, c.Charge.Limit.Capacity+c.Charge.Debt)
		}
	}}},
	{"settles all or nothing", "settled upwards", bugs{recorrect: func(c *correcting) {
		if c.levelBefore()+c.Diff > c.Charge.Limit.Capacity+c.Charge.Debt {
			c.after = c.before
		}
	}}},
	{"settles twice", "settled upwards", bugs{settle: settleTwice}},
	{"settles twice", "settled downwards", bugs{settle: settleTwice}},
	{"settles nothing", "settled downwards", bugs{settle: func(*reference, settling) error { return nil }}},
	{"settles no bucket that is gone", "settled upwards in a bucket that is gone", bugs{recorrect: func(c *correcting) {
		c.keep = c.before != (bucket{})
	}}},
	{"takes off what leaked from what is to be paid", "settled upwards in a bucket that is gone", bugs{settle: func(s *reference, all settling) error {
		s.mu.Lock()
		now := s.clock()
		s.mu.Unlock()
		return misread(func(of *leakybucket.Settlement) {
			if of.Diff > 0 {
				of.Diff = max(0, of.Diff-of.Charge.Limit.Leak*now.Sub(of.Was.At).Seconds())
			}
		})(s, all)
	}}},
	{"lends a take the debt", "debt makes no room", bugs{rejudge: eachCharge(
		func(j judging, i int, c leakybucket.Charge, d *leakybucket.Decision) {
			if !d.Fits && d.Level+c.Cost <= c.Limit.Capacity+c.Debt {
				d.Fits, d.Poured = true, !c.Probe
			}
		})}},

	{"cuts a reservation off at its capacity", "reservations wait and are given back", bugs{recorrect: func(c *correcting) {
		if c.Cancel {
			c.after.Level = min(c.after.Level, 2)
		}
	}}},
	{"gives back what has leaked", "settled downwards", bugs{settle: misread(func(of *leakybucket.Settlement) { of.Was.At = math.MaxInt64 / 2 })}},
	{"gives back what has leaked before the last write", "settled downwards", bugs{recorrect: func(c *correcting) {
		c.Was.At = max(c.Was.At, c.before.At)
		if c.Diff < 0 && c.Was.Poured {
			c.after.Level = max(0, c.levelBefore()-c.givesBack())
		}
	}}},
	{"gives back more than was poured", "settled downwards", bugs{recorrect: func(c *correcting) {
		if c.Diff < 0 && c.Was.Poured {
			c.Charge.Cost = math.Inf(1)
			c.after.Level = max(0, c.levelBefore()-c.givesBack())
		}
	}}},
	{"gives back nothing if less is left than was poured", "settled downwards", bugs{recorrect: func(c *correcting) {
		if c.Diff < 0 && -c.Diff > c.levelBefore() {
			c.after = c.before
		}
	}}},
	{"forgets what leaked when it settles", "settled downwards", bugs{recorrect: func(c *correcting) {
		if c.Diff < 0 {
			c.after.Level = max(0, c.before.Level-c.givesBack())
		}
	}}},
	{"gives back below empty", "settled downwards in a bucket that is gone", bugs{recorrect: func(c *correcting) {
		if c.Diff < 0 && c.Was.Poured {
			c.after.Level = c.levelBefore() - c.givesBack()
		}
	}}},
	{"makes a bucket to give back to", "settled downwards in a bucket that is gone", bugs{recorrect: func(c *correcting) { c.keep = true }}},
	{"makes a bucket below empty to give back to", "settled downwards in a bucket that is gone", bugs{recorrect: func(c *correcting) {
		if !c.keep {
			c.keep, c.after.Level = true, -c.givesBack()
		}
	}}},
	{"gives back what was never poured", "what was not poured is not given back", bugs{settle: misread(
		func(of *leakybucket.Settlement) { of.Was.Poured = true })}},
	{"takes what fits for poured", "what was not poured is not given back", bugs{settle: misread(
		func(of *leakybucket.Settlement) { of.Was.Poured = of.Was.Fits })}},
	{"gives back what a probe asked for", "what was not poured is not given back", bugs{settle: misread(
		func(of *leakybucket.Settlement) { of.Was.Poured = of.Was.Poured || of.Charge.Probe })}},
	{"settles only what was poured", "what was not poured is not given back", bugs{settle: misread(
		func(of *leakybucket.Settlement) {
			if !of.Was.Poured {
				of.Diff = 0
			}
		})}},

	{"pours a NaN when it settles", "settled by what is no amount", bugs{recorrect: func(c *correcting) {
		c.after.Level += 0 * c.Diff
	}}},
	{"takes no number for the most", "settled by what is no amount", bugs{settle: misread(func(of *leakybucket.Settlement) {
		if of.Diff != of.Diff {
			of.Diff = math.Inf(1)
		}
	})}},
	{"takes what is endless for nothing", "settled by what is no amount", bugs{settle: misread(func(of *leakybucket.Settlement) {
		if math.IsInf(of.Diff, 0) {
			of.Diff = 0
		}
	})}},
	{"settles in whole nanounits of an int64", "settled by what is no amount", bugs{settle: misread(func(of *leakybucket.Settlement) {
		of.Diff = float64(int64(max(-1e300, min(of.Diff, 1e300))*1e9)) / 1e9
	})}},
	{"lowers the level to a lower capacity when it settles", "settled with a changed limit", bugs{recorrect: func(c *correcting) {
		c.after.Level = min(c.after.Level, c.Charge.Limit.Capacity+c.Charge.Debt)
	}}},
	{"settles as the first limit says", "settled with a changed limit", bugs{settle: misread(func(of *leakybucket.Settlement) {
		of.Charge.Limit.Leak = 1
	})}},
	{"keeps settled levels in single precision", "model", bugs{recorrect: func(c *correcting) {
		c.after.Level = float64(float32(c.after.Level))
	}}},

	{"settles the first only", "several settled together", bugs{settle: func(s *reference, all settling) error {
		return s.settleEach(settling{all.ctx, all.settlements[:min(1, len(all.settlements))]})
	}}},
	{"settles eight charges at most", "several settled together", bugs{settle: func(s *reference, all settling) error {
		return s.settleEach(settling{all.ctx, all.settlements[:min(8, len(all.settlements))]})
	}}},
	{"settles each from what all have read", "several settled together", bugs{settle: correctAllThenWrite}},
	{"settles the last first", "several settled together", bugs{settle: func(s *reference, all settling) error {
		for i := range all.settlements {
			last := len(all.settlements) - i
			s.settleEach(settling{all.ctx, all.settlements[last-1 : last]})
		}
		return nil
	}}},
	{"trims a key when it settles", "keys are bytes", bugs{settle: misread(
		func(of *leakybucket.Settlement) { of.Charge.Key = strings.TrimRight(of.Charge.Key, " ") })}},
	{"settles the enforced bucket for a shadow charge", "shadow is settled apart", bugs{settle: misread(
		func(of *leakybucket.Settlement) { of.Charge.Shadow = false })}},
	{"settles no shadow", "shadow is settled apart", bugs{settle: misread(func(of *leakybucket.Settlement) {
		if of.Charge.Shadow {
			of.Diff = 0
		}
	})}},
	{"settles after it was cancelled", "settled with a cancelled context", bugs{settle: func(s *reference, all settling) error {
		s.settleEach(all)
		return all.ctx.Err()
	}}},
	{"says nothing of what it did not settle", "settled with a cancelled context", bugs{settle: func(s *reference, all settling) error {
		if all.ctx.Err() != nil {
			return nil
		}
		return s.settleEach(all)
	}}},

	{"sets the time of a bucket back when it settles", "settled with the clock a little back", bugs{recorrect: func(c *correcting) {
		c.after.At = c.now
	}}},
	{"counts a charge of the future as leaked", "settled with the clock a little back", bugs{settle: func(s *reference, all settling) error {
		s.mu.Lock()
		now := s.clock()
		s.mu.Unlock()
		return misread(func(of *leakybucket.Settlement) { of.Was.At = now - max(now-of.Was.At, of.Was.At-now) })(s, all)
	}}},
	{"never sets the time of a bucket back when it settles", "settled with the clock far back", bugs{recorrect: func(c *correcting) {
		c.after.At = max(c.after.At, c.before.At)
	}}},
	{"takes a clock for far back without the debt", "clock far back with a bucket in debt", bugs{take: mistake(noHorizon)}},
	{"takes a clock for far back without the debt of several", "clock far back with a bucket in debt", bugs{take: func(s *reference, t taking) error {
		if len(t.charges) < 2 {
			return s.takeOnce(t)
		}
		return mistake(noHorizon)(s, t)
	}}},
	{"takes a clock for far back without the debt of a probe", "clock far back with a bucket in debt", bugs{take: mistake(func(c *leakybucket.Charge) {
		if c.Probe {
			noHorizon(c)
		}
	})}},
	{"settles with the clock far back without the debt", "clock far back with a bucket in debt", bugs{recorrect: func(c *correcting) {
		if ahead := c.before.At - c.now; ahead.Sub(0).Seconds() > c.Charge.Limit.TimeToEmpty(c.Charge.Limit.Capacity).Seconds() {
			c.after.At = c.now
		}
	}}},
	{"never takes a clock for far back with a debt", "clock far back with a bucket in debt", bugs{take: mistake(func(c *leakybucket.Charge) {
		if c.Debt > 0 {
			c.Debt = 1e15
		}
	})}},

	{"forgets as if nothing had been settled", "nothing in debt is forgotten", bugs{recorrect: keepForgetting}},
	{"forgets as if nothing had been settled", "drops what was settled upwards last", bugs{recorrect: keepForgetting}},
	{"makes no room for what it settles", "drops what was settled upwards last", bugs{settle: func(s *reference, all settling) error {
		bound := s.maxBuckets
		s.maxBuckets = 0
		err := s.settleEach(all)
		s.maxBuckets = bound
		return err
	}}},
	{"forgets no sooner than if nothing had been settled", "given back buckets disappear", bugs{recorrect: forgetLater}},
	{"forgets no sooner than if nothing had been settled", "drops what was given back before live ones", bugs{recorrect: forgetLater}},
	{"forgets a bucket in debt as a full one", "nothing in debt is forgotten", bugs{recorrect: func(c *correcting) {
		full := leakybucket.State{Level: c.Charge.Limit.Capacity, At: c.after.At}
		c.after.forget = min(c.after.forget, store.Expiry(&c.Charge, &full))
	}}},
	{"forgets what a settlement has made", "nothing in debt is forgotten", bugs{recorrect: func(c *correcting) {
		if c.before == (bucket{}) {
			c.after.forget = c.now
		}
	}}},
}

func settleTwice(s *reference, all settling) error {
	s.settleEach(all)
	return s.settleEach(all)
}

func correctAllThenWrite(s *reference, all settling) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var corrected []correcting
	for _, of := range all.settlements {
		corrected = append(corrected, s.correct(of, s.clock()))
	}
	for _, c := range corrected {
		s.writeBack(c)
	}
	return nil
}

func keepForgetting(c *correcting) {
	if c.before != (bucket{}) {
		c.after.forget = c.before.forget
	}
}

func forgetLater(c *correcting) { c.after.forget = max(c.after.forget, c.before.forget) }

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
		if of.Cancel {
			of.Charge.Shadow = false
		}
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
