package storetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// brief is a charge to a bucket that drains in a tenth of a second, and that an
// overflow blocks for ten seconds, then for twenty.
func brief(key string) leakybucket.Charge {
	return blocking(charge(key, limit(1, 10), 1), 10*time.Second, 20*time.Second)
}

// nothingBlockedForgotten watches blocks run and end while other buckets come
// and go: long after a bucket is empty its block runs, and for as long again the
// next one is of the next step.
func nothingBlockedForgotten(tb testing.TB, open Open) {
	s := beginHeld(tb, open, Need{})
	const length, seconds = 10, 32
	// The one that a ceiling has blocked was never anything but empty.
	empty := below(brief("empty"), 0.5)
	s.begins(empty, 0, length*time.Second)
	var watched []leakybucket.Charge
	for i := range seconds {
		c := brief(fmt.Sprint("watched", i))
		s.pours(c, 0)
		s.begins(c, 1, length*time.Second)
		watched = append(watched, c)
	}
	// A probe and a settlement are writes too, after which there is as much to keep.
	probed, settled := brief("probed"), brief("settled")
	s.pours(probed, 0)
	s.begins(probe(probed), 1, length*time.Second)
	was := s.charged(settled, 0, -1)
	s.begins(settled, 1, length*time.Second)
	s.settle(was)
	untilEmpty := blocking(charge("until empty", limit(10, 1), 10))
	s.pours(untilEmpty, 0)
	s.begins(untilEmpty, 10, length*time.Second)

	for second := 1; second < seconds; second++ {
		now := time.Duration(second) * time.Second
		s.at(now)
		for _, c := range numbered(fmt.Sprint("passing", second, "/"), 40, limit(1, 1), 1) {
			s.pours(c, 0)
		}
		if second < length {
			for _, c := range append(watched, empty, probed, settled) {
				s.blocked(c, 0, length*time.Second)
			}
			s.blocked(untilEmpty, float64(10-second), length*time.Second)
			continue
		}
		// One a second overflows again. Within as long as its block was, that is
		// the next step.
		next := 20 * time.Second
		if second >= 2*length {
			next = 10 * time.Second
		}
		s.pours(watched[second], 0)
		s.begins(watched[second], 1, now+next)
	}
	s.at(seconds * time.Second)
	s.begins(empty, 0, (seconds+10)*time.Second)

	// A block of the second step is remembered for as long as that.
	s.at(45 * time.Second)
	for _, c := range numbered("passing", 40, limit(1, 1), 1) {
		s.pours(c, 0)
	}
	s.pours(watched[length], 0)
	s.begins(watched[length], 1, 65*time.Second) // its last one was over after 30 s
}

// blockedDisappear gives a store some minutes of traffic to forget buckets whose
// blocks are long over.
func blockedDisappear(tb testing.TB, open Open) {
	s := beginHeld(tb, open, Need{MaxBuckets: manyBuckets})
	if _, ok := s.store.(leakybucket.Counter); !ok {
		s.Log("not examined: the store is no leakybucket.Counter")
		return
	}
	const many = manyBuckets / 8
	for i := range many {
		c := brief(fmt.Sprint("blocked", i))
		s.pours(c, 0)
		s.begins(c, 1, 10*time.Second)
		s.begins(below(brief(fmt.Sprint("empty", i)), 0.5), 0, 10*time.Second)
	}
	s.at(19 * time.Second)
	s.bucketsAre(2 * many)
	const busy = manyBuckets / 16
	for minute := range 60 {
		s.at(time.Duration(minute+1) * time.Minute)
		for _, c := range numbered("busy", busy, limit(1, 1), 1) {
			s.pours(c, 0)
		}
	}
	if got := s.buckets(); got > 2*busy {
		s.Errorf("buckets an hour after %d were blocked for 10 s, with %d in use: got %d, want at most %d", 2*many, busy, got, 2*busy)
	}
}

// dropsBlockedLast fills a store with buckets that drain in 20 s, and with some
// that drain at once and are blocked for an hour.
func dropsBlockedLast(tb testing.TB, open Open) {
	s, evicter := beginBounded(tb, open)
	if evicter == nil {
		return
	}
	var all []leakybucket.Charge
	for i := range manyBuckets / 2 {
		c := blocking(charge(fmt.Sprint("blocked", i), limit(1, 10), 1), time.Hour)
		s.pours(c, 0)
		s.begins(c, 1, time.Hour)
		s.pours(charge(fmt.Sprint("plain", i), limit(10, 0.1), 2), 0)
		all = append(all, c)
	}
	s.insert(numbered("more", manyBuckets/8, limit(10, 1./3600), 1))
	lost := 0
	for _, c := range all {
		if d := s.decide(charges(probe(c)))[0]; d.BlockedUntil != epoch.Add(time.Hour) || d.Began {
			lost++
		}
	}
	if lost > manyBuckets/100 {
		s.Errorf("buckets blocked for an hour that were dropped, beside some with 20 s to drain: got %d, want at most %d", lost, manyBuckets/100)
	}
}
