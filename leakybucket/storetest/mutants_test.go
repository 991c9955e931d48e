package storetest

import (
	"math"
	"strings"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// bugs are ways in which a reference store can be wrong: each, where it is set,
// stands in for what is right or is done after it.
type bugs struct {
	take      func(*reference, taking) error
	reread    func(leakybucket.Charge, *leakybucket.State, leakybucket.Instant)
	rejudge   func(judging)
	settle    func(*reference, settling) error
	recorrect func(*correcting)
	rename    func(*name)
	makeRoom  func(*reference, leakybucket.Instant)
	sweep     func(*reference, leakybucket.Instant)
	noted     func(leakybucket.Charge, leakybucket.State) leakybucket.Instant
	reset     func(*reference, name) error
}

// A mutant is a store with a bug, and the case that must catch it.
type mutant struct {
	name, caughtBy string
	bugs
}

// eachCharge is a rejudge that goes through the charges.
func eachCharge(f func(j judging, i int, c leakybucket.Charge, d *leakybucket.Decision)) func(judging) {
	return func(j judging) {
		for i, c := range j.charges {
			f(j, i, c, &j.decisions[i])
		}
	}
}

// alsoPour is a rejudge that pours some of what was refused.
func alsoPour(which func(c leakybucket.Charge, level float64) bool) func(judging) {
	return eachCharge(func(j judging, i int, c leakybucket.Charge, d *leakybucket.Decision) {
		if !d.Fits && which(c, d.Level) {
			d.Fits, d.Poured = true, true
			j.states[i] = leakybucket.State{Level: d.Level + c.Cost, At: j.now}
		}
	})
}

var amountMutants = []mutant{
	{"charges what it refuses", "worked example", bugs{rejudge: eachCharge(
		func(j judging, i int, c leakybucket.Charge, d *leakybucket.Decision) {
			if !d.Fits {
				j.states[i] = leakybucket.State{Level: d.Level + c.Cost, At: j.now}
			}
		})}},
	{"forgets what leaked when it refuses", "worked example", bugs{rejudge: eachCharge(
		func(j judging, i int, _ leakybucket.Charge, d *leakybucket.Decision) {
			if !d.Fits {
				j.states[i].At = j.now
			}
		})}},
	{"gives no level when it refuses", "worked example", bugs{rejudge: eachCharge(
		func(_ judging, _ int, _ leakybucket.Charge, d *leakybucket.Decision) {
			if !d.Fits {
				d.Level = math.NaN()
			}
		})}},
	{"refuses an exact fill", "exact fill fits", bugs{rejudge: eachCharge(
		func(j judging, i int, c leakybucket.Charge, d *leakybucket.Decision) {
			if d.Level+c.Cost > c.Limit.Capacity {
				d.Fits, d.Poured, j.states[i] = false, false, j.before[i]
			}
		})}},
	{"pours cost 0 into a full bucket", "cost 0 fits unless full", bugs{rejudge: alsoPour(
		func(c leakybucket.Charge, _ float64) bool { return c.Cost == 0 })}},
	{"pours anything into an empty bucket", "oversize cost never fits", bugs{rejudge: alsoPour(
		func(_ leakybucket.Charge, level float64) bool { return level == 0 })}},
	{"pours a NaN", "cost that is no amount never fits", bugs{rejudge: alsoPour(
		func(c leakybucket.Charge, _ float64) bool { return c.Cost != c.Cost })}},
	{"pours a negative cost", "cost that is no amount never fits", bugs{rejudge: alsoPour(
		func(c leakybucket.Charge, _ float64) bool { return c.Cost < 0 })}},
	{"leaks for the coming second", "waiting as told is enough and needed", bugs{reread: func(c leakybucket.Charge, s *leakybucket.State, now leakybucket.Instant) {
		if now > s.At {
			s.Level = max(0, s.Level-c.Limit.Leak)
		}
	}}},
	{"lowers the level to a lower capacity", "changed limit keeps the level", bugs{reread: func(c leakybucket.Charge, s *leakybucket.State, _ leakybucket.Instant) {
		s.Level = min(s.Level, c.Limit.Capacity)
	}}},
	{"keeps levels in single precision", "model", bugs{rejudge: eachCharge(
		func(j judging, i int, _ leakybucket.Charge, _ *leakybucket.Decision) {
			j.states[i].Level = float64(float32(j.states[i].Level))
		})}},
}

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
	{"pours shadow over the capacity", "shadow refuses nobody", bugs{rejudge: alsoPour(
		func(c leakybucket.Charge, _ float64) bool { return c.Shadow && !c.Limit.Oversize(c.Cost) })}},
	{"pours shadow beside a refusal", "shadow is not poured beside a refusal", bugs{rejudge: eachCharge(
		func(j judging, i int, c leakybucket.Charge, d *leakybucket.Decision) {
			if c.Shadow {
				j.states[i], *d = c.Limit.Take(j.before[i], c.Cost, j.now)
			}
		})}},
}

var forgettingMutants = []mutant{
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
	{"drops any bucket, an empty one or not", "drops empty buckets before live ones", bugs{makeRoom: func(s *reference, now leakybucket.Instant) {
		if s.full() {
			s.drop(func(_, _ *bucket) bool { return false })
		}
	}}},
	{"counts what it forgets as evicted", "drops empty buckets before live ones", bugs{sweep: func(s *reference, now leakybucket.Instant) {
		before := len(s.buckets)
		s.forget(now)
		s.evictions += uint64(before - len(s.buckets))
	}}},
	{"drops the one that drains last", "full of live buckets", bugs{makeRoom: func(s *reference, now leakybucket.Instant) {
		if s.full() {
			s.drop(func(a, b *bucket) bool { return a.forget > b.forget })
		}
	}}},
	{"drops any live bucket", "full of live buckets", bugs{makeRoom: func(s *reference, now leakybucket.Instant) {
		if s.full() {
			s.forget(now)
		}
		if s.full() {
			s.drop(func(_, _ *bucket) bool { return false })
		}
	}}},
	{"drops nothing", "full of live buckets", bugs{makeRoom: func(*reference, leakybucket.Instant) {}}},
	{"does not count what it drops", "full of live buckets", bugs{makeRoom: func(s *reference, now leakybucket.Instant) {
		if s.full() {
			s.drop(func(a, b *bucket) bool { return a.forget < b.forget })
			s.evictions = 0
		}
	}}},
}
