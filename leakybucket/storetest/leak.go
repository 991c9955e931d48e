package storetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// The leaks of a reload: both limits have a capacity of ten.
const (
	fast = 2.
	slow = 0.01
)

func leaking(leak, cost float64) leakybucket.Charge { return charge("k", limit(10, leak), cost) }

func changedLimit(tb testing.TB, open Open) {
	s := beginHeld(tb, open, Need{})
	c := func(capacity, leak, cost float64) leakybucket.Charge { return charge("k", limit(capacity, leak), cost) }
	s.pours(c(10, 1, 8), 0)
	s.refuses(c(5, 1, 1), 8) // a lower capacity refuses, and takes nothing away
	s.wantLevel(c(10, 1, 0), 8)
	s.at(3 * time.Second)
	s.refuses(c(5, 1, 0), 5)
	s.pours(c(20, 1, 12), 5) // a higher one has room at once
	s.at(5 * time.Second)
	s.pours(c(16, 1, 1), 15)
	s.refuses(c(15, 1, 0), 16)
}

// changedLeak has buckets that are taken from under one leak and then under
// another. Units that drained before the change drained by the leak of that time.
func changedLeak(tb testing.TB, open Open) {
	for _, test := range []struct {
		before, after float64
		rest          time.Duration
		want          float64 // the level after the rest
		later         float64 // the level five seconds after that and a pour of 1
	}{
		{fast, slow, 2 * time.Second, 6, 6.95},
		{fast, slow, time.Minute, 0, 0.95},
		{slow, fast, 100 * time.Second, 9, 0},
		{slow, fast, 500 * time.Second, 5, 0},
		{fast, 2 * fast, time.Second, 8, 0},
		{fast, fast / 2, 2 * time.Second, 6, 2},
	} {
		s := beginHeld(tb, open, Need{})
		s.pours(leaking(test.before, 10), 0)
		s.at(test.rest)
		s.pours(leaking(test.after, 1), test.want)
		s.wantLevel(leaking(test.after, 0), test.want+1)
		s.at(test.rest + 5*time.Second)
		s.wantLevel(leaking(test.before, 0), test.later)

		// The same in a take of several.
		s = beginHeld(tb, open, Need{})
		beside := charge("beside", limit(10, 1), 1)
		s.take(charges(beside, leaking(test.before, 10)), want{poured, 0}, want{poured, 0})
		s.at(test.rest)
		s.take(charges(leaking(test.after, 0.5), beside, leaking(test.after, 0.5)),
			want{poured, test.want}, want{poured, max(0, 1-test.rest.Seconds())}, want{poured, test.want + 0.5})
		s.at(test.rest + 5*time.Second)
		s.wantLevel(leaking(test.before, 0), test.later)
	}
}

// changedLeakAsked has buckets that are only asked under another leak: by a
// refusal, by a probe, and by a charge that another one holds back. That writes the
// new leak, however soon it comes: a refusal's time to fit is by it.
func changedLeakAsked(tb testing.TB, open Open) {
	never := charge("never", limit(1, 1), 2)
	for _, ask := range []func(s *subject, leak, level float64){
		func(s *subject, leak, level float64) { s.refuses(leaking(leak, 20), level) },
		func(s *subject, leak, level float64) { s.refuses(leaking(leak, 9.99), level) },
		func(s *subject, leak, level float64) { s.probes(leaking(leak, 0.001), level) },
		func(s *subject, leak, level float64) {
			s.take(charges(leaking(leak, 0.001), never), want{held, level}, want{refused, 0})
		},
		func(s *subject, leak, level float64) {
			s.take(charges(shadow(leaking(leak, 20)), never, leaking(leak, 0.001)), want{refused, 0}, want{refused, 0}, want{held, level})
		},
	} {
		s := beginHeld(tb, open, Need{})
		s.pours(leaking(fast, 8), 0)
		s.at(time.Second)
		ask(s, slow, 6)
		s.at(2 * time.Second)
		ask(s, slow, 5.99)
		s.at(101 * time.Second)
		ask(s, fast, 5)
		s.at(101*time.Second + 500*time.Millisecond)
		ask(s, slow, 4)
		s.at(151*time.Second + 500*time.Millisecond)
		ask(s, fast, 3.5)
		s.at(152*time.Second + 500*time.Millisecond)
		s.pours(leaking(fast, 1), 1.5)
	}
}

// changedLeakSettled has settlements under another leak. They are writes,
// however soon they come.
func changedLeakSettled(tb testing.TB, open Open) {
	for _, test := range []struct {
		about   string
		correct func(*leakybucket.Settlement)
		want    float64 // the level after it, which is asked for later: asking writes the leak, too
	}{
		{"up", func(of *leakybucket.Settlement) { of.Diff = 2 }, 9},
		{"down", func(of *leakybucket.Settlement) { of.Diff = -2 }, 5 + slow/2},
		{"cancelled", func(of *leakybucket.Settlement) { of.Cancel = true }, 3},
	} {
		s := beginHeld(tb, open, Need{})
		s.pours(leaking(fast, 4), 0)
		was := s.charged(leaking(fast, 4), 4, 0)
		was.Charge.Limit.Leak = slow
		test.correct(&was)
		s.at(500 * time.Millisecond)
		s.settle(was)
		s.at(100*time.Second + 500*time.Millisecond)
		s.wantLevel(leaking(slow, 0), test.want-1)
	}
}

// changedLeakBlocks has blocks that begin under another leak. The beginning is a
// write, however soon it comes.
func changedLeakBlocks(tb testing.TB, open Open) {
	for _, test := range []struct{ before, after, want, later float64 }{
		{fast, slow, 9, 8.9},
		{slow, fast, 10 - slow/2, 0},
	} {
		s := beginHeld(tb, open, Need{})
		k := func(leak, cost float64) leakybucket.Charge { return blocking(leaking(leak, cost), time.Minute) }
		s.pours(k(test.before, 10), 0)
		s.at(500 * time.Millisecond)
		s.begins(k(test.after, 5), test.want, time.Minute+500*time.Millisecond)
		s.at(10*time.Second + 500*time.Millisecond)
		s.blocked(k(test.after, 1), test.later, time.Minute+500*time.Millisecond)
	}
	// Without steps it lasts until the bucket is empty by the leak that now counts.
	s := beginHeld(tb, open, Need{})
	s.pours(leaking(fast, 10), 0)
	s.at(time.Second)
	s.begins(blocking(leaking(1, 5)), 8, 9*time.Second)
}

// changedLeakKept watches buckets drain that would be empty soon by the leak
// they were filled with, and were touched under a slower one.
func changedLeakKept(tb testing.TB, open Open) {
	s := beginHeld(tb, open, Need{})
	const many, seconds = 10, 30
	k := func(how string, i int, leak, cost float64) leakybucket.Charge {
		return charge(fmt.Sprint(how, i), limit(100, leak), cost)
	}
	for i := range many {
		s.pours(k("poured", i, 10, 40), 0)
		s.pours(k("probed", i, 10, 40), 0)
		s.pours(k("refused", i, 10, 40), 0)
	}
	s.at(time.Second)
	for i := range many {
		s.pours(k("poured", i, 0.1, 1), 30)
		s.probes(k("probed", i, 0.1, 1), 30)
		s.refuses(k("refused", i, 0.1, 90), 30)
	}
	for second := 2; second <= seconds; second++ {
		s.at(time.Duration(second) * time.Second)
		s.passing(second, 40)
	}
	for i := range many {
		s.wantLevel(k("poured", i, 0.1, 0), 31-0.1*(seconds-1))
		s.wantLevel(k("probed", i, 0.1, 0), 30-0.1*(seconds-1))
		s.wantLevel(k("refused", i, 0.1, 0), 30-0.1*(seconds-1))
	}
}
