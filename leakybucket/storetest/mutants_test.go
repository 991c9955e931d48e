package storetest

import (
	"cmp"
	"math"
	"strconv"
	"strings"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
)

// mutants are stores with a bug each. Those of races are in bound_test.go.
var mutants = append([]mutant{
	{"refuses an exact fill", "exact fill fits", bugs{rejudge: eachCharge(
		func(j judging, i int, c leakybucket.Charge, d *leakybucket.Decision) {
			if d.Level+c.Cost > c.Limit.Capacity {
				d.Fits, d.Poured, j.states[i] = false, false, j.before[i]
			}
		})}},
	{"pours a negative cost", "cost that is no amount never fits", bugs{rejudge: alsoPour(
		func(c leakybucket.Charge, _ float64) bool { return c.Cost < 0 })}},
	{"leaks for the coming second", "waiting as told is enough and needed", bugs{reread: func(c leakybucket.Charge, s *leakybucket.State, now leakybucket.Instant) {
		if now > s.At {
			s.Level = max(0, s.Level-c.Limit.Leak)
		}
	}}},
	{"keeps levels in single precision", "model", bugs{rejudge: eachCharge(
		func(j judging, i int, _ leakybucket.Charge, _ *leakybucket.Decision) {
			j.states[i].Level = float64(float32(j.states[i].Level))
		})}},
	{"holds the level against the ceiling without the cost", "delays", bugs{take: mistake(func(c *leakybucket.Charge) {
		if c.Ceiling > 0 {
			c.Ceiling += c.Cost
		}
	})}},
	{"takes what is above the ceiling for oversize", "overflow of a ceiling begins a block", bugs{rejudge: eachCharge(
		func(j judging, i int, c leakybucket.Charge, d *leakybucket.Decision) {
			if d.Began && c.Ceiling > 0 && c.Cost > c.Ceiling {
				j.states[i].BlockedUntil, j.states[i].Step = j.before[i].BlockedUntil, j.before[i].Step
				d.Began, d.BlockedUntil = false, 0
			}
		})}},
	{"leaks as the charge says since the last write", "changed leak does not count backwards", bugs{reread: func(_ leakybucket.Charge, s *leakybucket.State, _ leakybucket.Instant) {
		s.Leak = 0
	}}},
	{"writes a changed leak a second after the last write only", "changed leak is written when it is asked", bugs{rejudge: eachCharge(
		func(j judging, i int, c leakybucket.Charge, d *leakybucket.Decision) {
			if before := j.before[i]; !d.Poured && !d.Began && before.Leak != 0 && before.Leak != c.Limit.Leak && j.now-before.At < 1e6 {
				j.states[i] = before
			}
		})}},
	{"keeps the leak when a block begins", "changed leak is written when a block begins", bugs{rejudge: eachCharge(
		func(j judging, i int, _ leakybucket.Charge, d *leakybucket.Decision) {
			if before := j.before[i]; d.Began {
				j.states[i].Level, j.states[i].At, j.states[i].Leak = before.Level, before.At, before.Leak
			}
		})}},
	{"sets the time of a bucket back", "clock a little back", bugs{rejudge: eachCharge(
		func(j judging, i int, _ leakybucket.Charge, d *leakybucket.Decision) {
			if d.Poured {
				j.states[i].At = j.now
			}
		})}},
	{"sets the time of a bucket back with a pour only", "clock far back with a full bucket", bugs{rejudge: eachCharge(
		func(j judging, i int, _ leakybucket.Charge, d *leakybucket.Decision) {
			if !d.Poured {
				j.states[i] = j.before[i]
			}
		})}},
	{"pours before one that refuses", "all or none", bugs{rejudge: func(j judging) {
		for i, c := range j.charges {
			if !j.decisions[i].Fits {
				return
			}
			j.states[i] = leakybucket.State{Level: j.decisions[i].Level + c.Cost, At: j.now}
		}
	}}},
	{"keeps the last write to the same bucket", "same bucket twice", bugs{rejudge: eachCharge(
		func(j judging, i int, c leakybucket.Charge, d *leakybucket.Decision) {
			if d.Poured {
				j.states[i].Level = c.Limit.Level(j.before[i], j.now) + c.Cost
			}
		})}},
	{"pours after it was cancelled", "cancelled context", bugs{take: func(s *reference, t taking) error {
		s.takeOnce(t)
		return t.ctx.Err()
	}}},
	{"charges what is in the arguments later", "arguments are the caller's again", bugs{take: later((*reference).takeOnce)}},
	{"runs zone and key together", "keys are bytes", bugs{rename: func(n *name) { n.zone, n.key = "", n.zone+n.key }}},
	{"makes a key valid UTF-8", "keys are bytes", bugs{rename: func(n *name) { n.key = strings.ToValidUTF8(n.key, "\ufffd") }}},
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
	{"pours a probe", "probe pours nothing", bugs{take: mistake(func(c *leakybucket.Charge) { c.Probe = false })}},
	{"writes what a probe has read", "probe refuses what is beside it", bugs{rejudge: eachCharge(
		func(j judging, i int, c leakybucket.Charge, _ *leakybucket.Decision) {
			if c.Probe {
				j.states[i] = j.before[i]
			}
		})}},
	{"lowers a level above what may be owed", "settled upwards", bugs{recorrect: func(c *correcting) {
		if c.Diff > 0 {
			c.after.Level = min(c.after.Level, c.Charge.Limit.Capacity+c.Charge.Debt)
		}
	}}},
	{"settles no bucket that is gone", "settled upwards in a bucket that is gone", bugs{recorrect: func(c *correcting) {
		c.keep = c.before != (bucket{})
	}}},
	{"gives back what has leaked", "settled downwards", bugs{settle: misread(func(of *leakybucket.Settlement) { of.Was.At = math.MaxInt64 / 2 })}},
	{"takes what fits for poured", "what was not poured is not given back", bugs{settle: misread(
		func(of *leakybucket.Settlement) { of.Was.Poured = of.Was.Fits })}},
	{"tells the level in 15 digits", "cancelled to the last digit", bugs{rejudge: eachCharge(
		func(_ judging, _ int, _ leakybucket.Charge, d *leakybucket.Decision) {
			d.Level, _ = strconv.ParseFloat(strconv.FormatFloat(d.Level, 'g', 15, 64), 64)
		})}},
	{"looks at the level alone", "cancelled after others came", bugs{recorrect: func(c *correcting) {
		if c.Cancel && c.Was.Poured && c.before.Level == c.Was.Level+c.Charge.Cost {
			c.after.Level, c.after.At = max(0, c.Charge.Limit.Level(c.before.State, c.now)-c.Charge.Cost), max(c.before.At, c.now)
		}
	}}},
	{"cancels from what all have read", "several cancelled together", bugs{settle: correctAllThenWrite}},
	{"makes a block longer while it lasts", "overflow begins a block", bugs{rejudge: eachCharge(
		func(j judging, i int, c leakybucket.Charge, d *leakybucket.Decision) {
			if d.BlockedUntil > 0 && !d.Began {
				d.BlockedUntil = j.now.Add(c.Block.Length(0))
				j.states[i].BlockedUntil = d.BlockedUntil
			}
		})}},
	{"climbs when it may have forgotten", "ladder climbs", bugs{rejudge: eachCharge(
		func(j judging, i int, c leakybucket.Charge, d *leakybucket.Decision) {
			if last := j.before[i]; d.Began && last.BlockedUntil != 0 && j.now.Sub(last.BlockedUntil) == c.Block.Length(last.Step) {
				j.states[i].Step = min(last.Step+1, uint8(len(c.Block.Steps)-1))
				j.block(i, j.now.Add(c.Block.Length(j.states[i].Step)))
			}
		})}},
	{"blocks until empty however long that is", "block until empty", bugs{rejudge: eachCharge(
		func(j judging, i int, c leakybucket.Charge, d *leakybucket.Decision) {
			if d.Began && len(c.Block.Steps) == 0 {
				j.block(i, j.now.Add(c.Limit.TimeToEmpty(d.Level)))
			}
		})}},
	{"keeps a block however far ahead it is", "clock back while a block runs", bugs{rejudge: keepAhead}},
	{"blocks shadow and enforced together", "shadow blocks apart", bugs{rejudge: func(j judging) {
		for i, c := range j.charges {
			for k, other := range j.charges {
				if c.Key == other.Key && c.Shadow && !other.Shadow && j.decisions[i].Began && !j.decisions[k].Began {
					j.states[k].BlockedUntil = j.states[i].BlockedUntil
				}
			}
		}
	}}},
	{"does not keep the block that a probe begins", "probe begins a block", bugs{rejudge: eachCharge(
		func(j judging, i int, c leakybucket.Charge, _ *leakybucket.Decision) {
			if c.Probe {
				j.states[i] = j.before[i]
			}
		})}},
	{"forgets too early", "nothing live is forgotten", bugs{sweep: func(s *reference, now leakybucket.Instant) {
		for n, b := range s.buckets {
			if now >= b.At+(b.forget-b.At)/2 {
				delete(s.buckets, n)
			}
		}
	}}},
	{"never forgets", "drained buckets disappear", bugs{sweep: func(*reference, leakybucket.Instant) {}}},
	{"makes a bucket for what it refuses", "counts its buckets", bugs{rejudge: eachCharge(
		func(j judging, i int, _ leakybucket.Charge, _ *leakybucket.Decision) {
			j.states[i].At = max(j.states[i].At, 1)
		})}},
	{"counts what it forgets as evicted", "drops empty buckets before live ones", bugs{sweep: func(s *reference, now leakybucket.Instant) {
		before := len(s.buckets)
		s.forget(now)
		s.evictions += uint64(before - len(s.buckets))
	}}},
	{"drops live ones before it is full", "full of live buckets", bugs{makeRoom: func(s *reference, now leakybucket.Instant) {
		if len(s.buckets) >= s.maxBuckets*96/100 {
			s.drop(func(a, b *bucket) bool { return a.forget < b.forget })
		}
	}}},
	{"forgets a block when it is over", "nothing blocked is forgotten", bugs{noted: func(c leakybucket.Charge, s leakybucket.State) leakybucket.Instant {
		return max(c.Limit.EmptyAt(s), s.BlockedUntil)
	}}},
	{"keeps the step when it resets", "reset forgets level, block and step", bugs{reset: func(s *reference, n name) error {
		if b := s.buckets[n]; b != nil {
			b.State = leakybucket.State{BlockedUntil: min(b.BlockedUntil, epoch), Step: b.Step}
		}
		return nil
	}}},
	{"resets a key in all zones", "reset of one bucket", bugs{reset: func(s *reference, n name) error {
		for other := range s.buckets {
			if other.key == n.key && other.shadow == n.shadow {
				delete(s.buckets, other)
			}
		}
		return nil
	}}},
	{"lists a thousand buckets at most", "lists thousands of buckets", bugs{list: func(found []store.Entry) []store.Entry {
		return found[:min(len(found), 1000)]
	}}},
	{"counts its way through a listing", "lists while buckets come and go", bugs{page: func(all []store.Entry, want int, cursor string) ([]store.Entry, string, error) {
		from, err := strconv.Atoi(cmp.Or(cursor, "0"))
		if err != nil {
			return nil, "", store.ErrBadCursor
		}
		all = all[min(from, len(all)):]
		if len(all) <= want {
			return all, "", nil
		}
		return all[:want], strconv.Itoa(from + want), nil
	}}},
	{"begins anew after a cursor that is none", "refuses a cursor that is none", bugs{page: func(all []store.Entry, want int, cursor string) ([]store.Entry, string, error) {
		if !strings.HasPrefix(cursor, ">") {
			cursor = ""
		}
		return pageBehind(all, want, cursor)
	}}},
	{"lets an equal number stand", "texts by their numbers", bugs{mayPut: func(r *referenceRegistry, t store.Text) bool { return t.Number >= r.texts[t.Name].Number }}},
	{"has one mark for all writes", "texts by their numbers", bugs{keepsMark: true}},
	{"writes what has ended", "texts end", bugs{mayPut: func(r *referenceRegistry, t store.Text) bool { return t.Number > r.texts[t.Name].Number }}},
	{"returns all texts", "many texts", bugs{returnsAll: true}},
	{"lets the lower number stand at times", "texts under contention", bugs{mayPut: func(r *referenceRegistry, t store.Text) bool {
		return t.Name != "shared" && t.Number > r.texts[t.Name].Number
	}}},
}, raceMutants...)

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

// block blocks the bucket of the i-th charge, and says that the charge did.
func (j judging) block(i int, until leakybucket.Instant) {
	j.states[i].BlockedUntil = until
	d := &j.decisions[i]
	d.Fits, d.Poured, d.Began, d.BlockedUntil = false, false, true, until
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
