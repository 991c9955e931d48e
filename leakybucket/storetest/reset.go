package storetest

import (
	"context"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// resets begins a case of a store that forgets single buckets, if it does.
func resets(tb testing.TB, open Open) (*subject, func(c leakybucket.Charge)) {
	s := beginHeld(tb, open, Need{})
	resetter, ok := s.store.(leakybucket.Resetter)
	if !ok {
		s.Log("not examined: the store is no leakybucket.Resetter")
		return s, nil
	}
	return s, func(c leakybucket.Charge) {
		s.Helper()
		if err := resetter.Reset(context.Background(), c.Zone, c.Key, c.Shadow); err != nil {
			s.Fatalf("resetting %s: got error %v, want none", bucketOf(c), err)
		}
	}
}

// resetForgets: level, block and step are gone, as if nothing had ever been
// asked of the bucket.
func resetForgets(tb testing.TB, open Open) {
	s, reset := resets(tb, open)
	if reset == nil {
		return
	}
	k, other := guarded("k"), guarded("other")
	s.fill(k)
	s.begins(k, 10, time.Minute)
	s.at(time.Minute)
	s.fill(k)
	s.begins(k, 10, time.Minute+time.Hour)
	reset(k)
	s.wantLevel(k, 0)
	s.fill(k)
	s.begins(k, 10, 2*time.Minute) // of the first step
	s.blocked(k, 10, 2*time.Minute)

	// It is dated anew too.
	reset(k)
	s.at(55 * time.Second)
	s.pours(costing(k, 8), 0)
	s.at(57 * time.Second)
	s.wantLevel(k, 6)

	// Who was charged before it gets nothing back.
	was := s.charged(costing(other, 5), 0, -5)
	reset(other)
	s.settle(was)
	s.settle(leaving(was))
	s.wantLevel(other, 0)
	s.pours(costing(other, 10), 0)
}

// resetOne: nothing else is touched, and nothing needs to be there.
func resetOne(tb testing.TB, open Open) {
	s, reset := resets(tb, open)
	if reset == nil {
		return
	}
	k := guarded("k")
	elsewhere := k
	elsewhere.Zone = "elsewhere"
	others := charges(shadow(k), guarded("k/"), guarded("K"), guarded("kk"), guarded(""), elsewhere)
	s.fill(k)
	s.fill(others...)
	for _, c := range append(others, k) {
		s.begins(c, 10, time.Minute)
	}
	s.bucketsAre(len(others) + 1)
	reset(k)
	s.bucketsAre(len(others))
	for _, c := range others {
		s.blocked(c, 10, time.Minute)
	}
	s.pours(k, 0)
	s.bucketsAre(len(others) + 1)
	reset(shadow(k))
	s.pours(shadow(k), 0)
	s.pours(k, 1)
	for range 2 {
		reset(k)
		reset(guarded("never there"))
		reset(shadow(guarded("never there")))
	}
	s.bucketsAre(len(others))
	for _, c := range others[1:] {
		s.blocked(c, 10, time.Minute)
		reset(c)
		s.pours(c, 0)
	}
}
