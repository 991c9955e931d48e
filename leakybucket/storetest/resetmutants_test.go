package storetest

import (
	"errors"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

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
