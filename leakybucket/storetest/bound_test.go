package storetest

import (
	"math"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// elsewhere lets others run where a bug gives them the time to. The bugs here
// are in the order of steps that are each locked, so there is no data race in
// them for a detector to see.
func elsewhere() {
	for range 3 {
		runtime.Gosched()
	}
}

// locked runs f in a critical section of its own.
func (s *reference) locked(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

var raceMutants = []mutant{
	{"checks, then acts", "fresh keys under contention", bugs{take: checkThenAct}},
	{"checks, then acts", "all or none under contention", bugs{take: checkThenAct}},
	{"checks, then acts", "bound on one key", bugs{take: checkThenAct}},
	{"checks, then acts", "bound on several keys", bugs{take: checkThenAct}},
	{"checks, then acts", "bound on keys taken together", bugs{take: checkThenAct}},
	{"reads the clock before the lock", "bound on one key", bugs{take: clockBeforeLock(true)}},
	{"reads the clock before the lock, and keeps the later", "bound on one key", bugs{take: clockBeforeLock(false)}},
	{"reads the clock before several locks", "bound on keys taken together", bugs{take: func(s *reference, t taking) error {
		if len(t.charges) < 2 {
			return s.takeOnce(t)
		}
		return clockBeforeLock(true)(s, t)
	}}},
	{"asks one by one and pours one by one", "all or none under contention", bugs{take: askThenPour}},
	{"checks, then acts", "settled under contention", bugs{take: checkThenAct}},
	{"reads, then settles", "settled under contention", bugs{settle: readThenSettle}},
	{"reads, then settles", "bound on what is settled", bugs{settle: readThenSettle}},
	{"gives back what has leaked", "bound on what is settled", bugs{settle: giveBackLeaked}},
	{"settles twice", "settled under contention", bugs{settle: settleTwice}},
	{"settles twice", "bound on what is settled", bugs{settle: settleTwice}},
}

func checkThenAct(s *reference, t taking) error {
	var j judging
	s.locked(func() {
		now := s.clock()
		j = s.judge(t, s.read(t.charges, now), now)
	})
	elsewhere()
	s.locked(func() { s.write(j) })
	return nil
}

// clockBeforeLock dates buckets with what the clock said when it was asked, or
// with the later of that and what they were dated before.
func clockBeforeLock(raw bool) func(*reference, taking) error {
	return func(s *reference, t taking) error {
		var now leakybucket.Instant
		s.locked(func() { now = s.clock() })
		elsewhere()
		s.locked(func() {
			j := s.judge(t, s.read(t.charges, now), now)
			for i := range j.states {
				if raw && t.decisions[i].Poured {
					j.states[i].At = now
				}
			}
			s.write(j)
		})
		return nil
	}
}

func askThenPour(s *reference, t taking) error {
	s.locked(func() {
		now := s.clock()
		s.judge(t, s.read(t.charges, now), now)
	})
	for i := range t.charges {
		elsewhere()
		if t.decisions[i].Poured {
			s.takeOnce(taking{t.ctx, t.charges[i : i+1], make([]leakybucket.Decision, 1)})
		}
	}
	return nil
}

// readThenSettle loses what is poured or settled between.
func readThenSettle(s *reference, all settling) error {
	for _, of := range all.settlements {
		var c correcting
		s.locked(func() { c = s.correct(of, s.clock()) })
		elsewhere()
		s.locked(func() { s.writeBack(c) })
	}
	return nil
}

func giveBackLeaked(s *reference, all settling) error {
	return misread(func(of *leakybucket.Settlement) { of.Was.At = math.MaxInt64 / 2 })(s, all)
}

// at is an event at so many microseconds, asked and answered right then.
func at(us int, cost, level float64, o outcome) event {
	d := time.Duration(us) * time.Microsecond
	return event{call: d - 100, back: d + 100, cost: cost, Decision: leakybucket.Decision{
		Fits: o == poured || o == held, Poured: o == poured, Level: level, At: epoch + leakybucket.Instant(us),
	}}
}

// asked is an event whose caller asked and was answered at other times, in
// microseconds, than the store said.
func asked(call, back int, e event) event {
	e.call, e.back = time.Duration(call)*time.Microsecond, time.Duration(back)*time.Microsecond
	return e
}

// settles is a settlement asked and answered at so many microseconds, of a
// charge that was poured at the epoch.
func settles(call, back int, cost, diff float64) settled {
	return settled{
		call: time.Duration(call) * time.Microsecond,
		back: time.Duration(back) * time.Microsecond,
		Settlement: leakybucket.Settlement{
			Charge: leakybucket.Charge{Cost: cost},
			Was:    leakybucket.Decision{Fits: true, Poured: true, At: epoch},
			Diff:   diff,
		},
	}
}

// cancels is a settlement that gives all back of such a charge.
func cancels(call, back int, cost float64) settled {
	s := settles(call, back, cost, 7)
	s.Cancel = true
	return s
}

// tellOf wants a complaint about a history, or none if want is empty.
func tellOf(t *testing.T, name string, h history, want string) {
	t.Helper()
	if err := h.check(); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
		t.Errorf("%s: got %v, want a complaint with %q", name, err, want)
	}
}

func TestHistory(t *testing.T) {
	l := limit(10, 1000) // 0.001 leaks in a microsecond
	for _, test := range []struct {
		name   string
		events []event
		want   string // in the complaint; empty: there is none
	}{
		{"nothing", nil, ""},
		{"one burst", []event{at(0, 10, 0, poured)}, ""},
		{"refused and held back", []event{
			at(0, 6, 0, poured), at(0, 6, 6, refused), at(1000, 6, 5, refused), at(1000, 5, 5, held), at(1000, 5, 5, poured),
		}, ""},
		{"what has leaked is poured again", []event{at(0, 10, 0, poured), at(1000, 1, 9, poured), at(2000, 1, 9, poured)}, ""},
		{"any order at one instant", []event{
			at(5, 5, 6, refused), at(5, 2, 4, poured), at(5, 11, 0, refused), at(5, 4, 0, poured), at(5, 7, 4, refused),
		}, ""},
		{"rounded up to the next microsecond", []event{at(0, 10, 0, poured), at(999, 1, 9.001, poured)}, ""},

		{"a little too much at once", []event{at(0, 10, 0, poured), at(0, 0.01, 10, poured)}, "store's clock: got 10.01 more"},
		{"a little too soon", []event{at(0, 10, 0, poured), at(980, 1, 9.02, poured)}, "store's clock: got 10.02 more"},
		{"too much in the middle", []event{
			at(0, 1, 0, poured), at(50_000, 9, 0, poured), at(50_010, 1.1, 8.99, poured), at(90_000, 1, 0, poured),
		}, "store's clock: got 10.09"},
		{"poured without fitting", []event{at(0, 9, 0, poured), at(0, 2, 9, poured)}, "want fits false"},
		{"refused without reason", []event{at(0, 2, 0, refused)}, "want fits true"},
		{"level of one who came later", []event{at(100, 5, 0, poured), at(99, 1, 5, poured)}, "want level 0"},
		{"refused by one who came later", []event{at(100, 5, 0, poured), at(99, 9, 5, refused)}, "want one of the levels [0]"},
		{"level lost", []event{at(0, 5, 0, poured), at(100, 1, 0, poured)}, "want level 4.9"},
		{"answered before, decided after", []event{
			asked(0, 10, at(100, 1, 0, poured)), asked(20, 30, at(99, 20, 0, refused)),
		}, "1µs before"},
		{"side by side, decided either way", []event{
			asked(0, 25, at(100, 1, 0, poured)), asked(20, 30, at(99, 20, 0, refused)),
		}, ""},
		{"the store's clock is too fast", []event{
			asked(0, 1, at(0, 10, 0, poured)), asked(500, 600, at(1000, 1, 9, poured)),
		}, "callers' clock: got 10.4 more"},
		{"the store's clock may be as fast as the answers allow", []event{
			asked(0, 1, at(0, 10, 0, poured)), asked(500, 1000, at(1000, 1, 9, poured)),
		}, ""},
	} {
		tellOf(t, test.name, history{limit: l, events: test.events}, test.want)
	}
}

func TestHistoryOfSettlements(t *testing.T) {
	l := limit(10, 1000) // 0.001 leaks in a microsecond
	now := func(us int, cost, level float64, o outcome) event { return asked(us, us+1, at(us, cost, level, o)) }
	seen := func(us int) event { return now(us, 20, 0, refused) }
	for _, test := range []struct {
		name    string
		events  []event
		settled []settled
		want    string // in the complaint; empty: there is none
	}{
		{"what was given back is poured again", []event{
			now(0, 10, 0, poured), now(20, 5, 5, poured),
		}, []settled{settles(5, 6, 10, -5)}, ""},
		{"more than was given back is poured", []event{
			now(0, 10, 0, poured), now(20, 6, 4, poured),
		}, []settled{settles(5, 6, 10, -5)}, "store's clock: got 10.98 more"},
		{"no more is given back than was poured", []event{
			now(0, 10, 0, poured), now(20, 6, 4, poured),
		}, []settled{settles(5, 6, 5, -50)}, "store's clock: got 10.98 more"},
		{"what has leaked is not given back", []event{
			now(0, 10, 0, poured), seen(4000), now(4010, 10, 0, poured), now(4011, 0.2, 9, poured),
		}, []settled{settles(4005, 4006, 10, -10)}, "store's clock: got 10.189"},
		{"of what is cancelled all is given back, leaked or not", []event{
			now(0, 5, 0, poured), now(0, 5, 5, poured), seen(4000), now(4010, 9, 0.99, poured),
		}, []settled{cancels(4005, 4006, 5)}, ""},
		{"more than was cancelled is poured", []event{
			now(0, 10, 0, poured), now(20, 6, 4, poured),
		}, []settled{cancels(5, 6, 5)}, "store's clock: got 10.98 more"},
		{"settled upwards", []event{
			now(0, 10, 0, poured), now(20, 5, 5, poured),
		}, []settled{settles(5, 6, 10, 5)}, "store's clock: got 14.98 more"},
		{"given back before the window", []event{
			now(0, 5, 0, poured), now(1020, 10, 0, poured), now(1030, 1, 9, poured),
		}, []settled{settles(1005, 1006, 5, -5)}, "callers' clock: got 10.989 more"},
		{"given back before the window by the store's clock", []event{
			now(0, 5, 0, poured), seen(1008), now(1020, 10, 0, poured), now(1030, 1, 9, poured),
		}, []settled{settles(1005, 1006, 5, -5)}, "store's clock: got 10.99 more"},
		{"given back before the window, or in it for all that is known", []event{
			now(0, 5, 0, poured), now(1020, 10, 0, poured), now(1030, 1, 9, poured),
		}, []settled{settles(1005, 1021, 5, -5)}, ""},
		{"given back after the window", []event{
			now(0, 10, 0, poured), now(10, 1, 9, poured), seen(12),
		}, []settled{settles(14, 16, 10, -10)}, "store's clock: got 10.99 more"},
		{"given back after the window, or in it for all that is known", []event{
			now(0, 10, 0, poured), now(10, 1, 9, poured), seen(12),
		}, []settled{settles(11, 16, 10, -10)}, ""},
		{"the store's clock is too fast, whatever is given back later", []event{
			asked(0, 1, at(0, 10, 0, poured)), asked(500, 600, at(1000, 1, 9, poured)),
		}, []settled{settles(601, 700, 10, -10)}, "callers' clock: got 10.4 more"},
		{"the store's clock is too fast, which nobody can tell from a settlement", []event{
			asked(0, 1, at(0, 10, 0, poured)), asked(500, 600, at(1000, 1, 9, poured)),
		}, []settled{settles(600, 700, 10, -10)}, ""},
		{
			"poured without fitting",
			[]event{now(0, 9, 0, poured), now(0, 2, 9, poured)},
			[]settled{settles(1, 2, 9, -9)},
			"want fits false",
		},
	} {
		tellOf(t, test.name, history{l, test.events, test.settled}, test.want)
	}
}
