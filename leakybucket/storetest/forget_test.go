package storetest

import (
	"cmp"
	"errors"
	"math"
	"strconv"
	"strings"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
)

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
	{"drops live ones before it is full", "full of live buckets", bugs{makeRoom: func(s *reference, now leakybucket.Instant) {
		if len(s.buckets) >= s.maxBuckets*96/100 {
			s.drop(func(a, b *bucket) bool { return a.forget < b.forget })
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

var blockForgettingMutants = []mutant{
	{"forgets a blocked bucket when it is empty", "nothing blocked is forgotten", bugs{noted: forgetEmpty}},
	{"forgets a blocked bucket when it is empty", "drops blocked buckets last", bugs{noted: forgetEmpty}},
	{"forgets a block when it is over", "nothing blocked is forgotten", bugs{noted: func(c leakybucket.Charge, s leakybucket.State) leakybucket.Instant {
		return max(c.Limit.EmptyAt(s), s.BlockedUntil)
	}}},
	{"forgets a block that is over by the first step", "nothing blocked is forgotten", bugs{noted: func(c leakybucket.Charge, s leakybucket.State) leakybucket.Instant {
		s.Step = 0
		return store.Expiry(&c, &s)
	}}},
	{"keeps nothing that is empty", "nothing blocked is forgotten", bugs{rejudge: eachCharge(
		func(j judging, i int, _ leakybucket.Charge, d *leakybucket.Decision) {
			if j.states[i].Level == 0 {
				j.states[i] = j.before[i]
			}
		})}},
	{"forgets a block when a probe begins it", "nothing blocked is forgotten", bugs{noted: func(c leakybucket.Charge, s leakybucket.State) leakybucket.Instant {
		if c.Probe {
			return c.Limit.EmptyAt(s)
		}
		return store.Expiry(&c, &s)
	}}},
	{"forgets a block when it settles", "nothing blocked is forgotten", bugs{recorrect: func(c *correcting) {
		c.after.forget = c.Charge.Limit.EmptyAt(c.after.State)
	}}},
	{"never forgets what was blocked", "blocked buckets disappear", bugs{noted: func(c leakybucket.Charge, s leakybucket.State) leakybucket.Instant {
		if s.BlockedUntil > 0 {
			return math.MaxInt64
		}
		return store.Expiry(&c, &s)
	}}},
	{"forgets what is blocked and was never poured into", "nothing blocked is forgotten", bugs{noted: func(c leakybucket.Charge, s leakybucket.State) leakybucket.Instant {
		if s.Level == 0 {
			return 0
		}
		return store.Expiry(&c, &s)
	}}},
}

func forgetEmpty(c leakybucket.Charge, s leakybucket.State) leakybucket.Instant {
	return c.Limit.EmptyAt(s)
}

// keeping returns a reset that leaves some of the bucket.
func keeping(rest func(leakybucket.State) leakybucket.State) func(*reference, name) error {
	return func(s *reference, n name) error {
		if b, kept := s.buckets[n]; kept {
			b.State = rest(b.State)
		}
		return nil
	}
}

var resetMutants = []mutant{
	{"resets nothing", "reset forgets level, block and step", bugs{reset: func(*reference, name) error { return nil }}},
	{"resets the block alone", "reset forgets level, block and step", bugs{reset: keeping(
		func(s leakybucket.State) leakybucket.State { return leakybucket.State{Level: s.Level, At: s.At} })}},
	{"resets the level alone", "reset forgets level, block and step", bugs{reset: keeping(
		func(s leakybucket.State) leakybucket.State {
			return leakybucket.State{At: s.At, BlockedUntil: s.BlockedUntil, Step: s.Step}
		})}},
	{"keeps the step when it resets", "reset forgets level, block and step", bugs{reset: keeping(
		func(s leakybucket.State) leakybucket.State {
			return leakybucket.State{BlockedUntil: min(s.BlockedUntil, epoch), Step: s.Step}
		})}},
	{"keeps the date when it resets", "reset forgets level, block and step", bugs{reset: keeping(
		func(s leakybucket.State) leakybucket.State { return leakybucket.State{At: s.At} })}},
	{"keeps an empty bucket when it resets", "reset of one bucket", bugs{reset: keeping(
		func(leakybucket.State) leakybucket.State { return leakybucket.State{} })}},
	{"resets the shadow too", "reset of one bucket", bugs{reset: func(s *reference, n name) error {
		delete(s.buckets, n)
		n.shadow = !n.shadow
		delete(s.buckets, n)
		return nil
	}}},
	{"resets the enforced bucket for the shadow", "reset of one bucket", bugs{reset: func(s *reference, n name) error {
		n.shadow = false
		delete(s.buckets, n)
		return nil
	}}},
	{"resets a zone", "reset of one bucket", bugs{reset: func(s *reference, n name) error {
		for other := range s.buckets {
			if other.zone == n.zone {
				delete(s.buckets, other)
			}
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
	{"complains that there is nothing to reset", "reset of one bucket", bugs{reset: func(s *reference, n name) error {
		if _, kept := s.buckets[n]; !kept {
			return errors.New("no such bucket")
		}
		delete(s.buckets, n)
		return nil
	}}},
}

var listMutants = []mutant{
	{"lists levels without their blocks", "lists the buckets of a zone", bugs{list: func(found []store.Entry) []store.Entry {
		for i := range found {
			found[i].State.BlockedUntil = 0
		}
		return found
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
	{"gives a whole listing at once", "lists while buckets come and go", bugs{page: func(all []store.Entry, _ int, _ string) ([]store.Entry, string, error) {
		return all, "", nil
	}}},
	{"begins anew after a cursor that is none", "refuses a cursor that is none", bugs{page: func(all []store.Entry, want int, cursor string) ([]store.Entry, string, error) {
		if !strings.HasPrefix(cursor, ">") {
			cursor = ""
		}
		return pageBehind(all, want, cursor)
	}}},
}
