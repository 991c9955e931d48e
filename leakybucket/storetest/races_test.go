package storetest

import (
	"math"
	"runtime"

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
	{"makes the same bucket twice", "fresh keys under contention", bugs{take: getOrCreate}},
	{"reads the clock before the lock", "bound on one key", bugs{take: clockBeforeLock(true)}},
	{"reads the clock before the lock, and keeps the later", "bound on one key", bugs{take: clockBeforeLock(false)}},
	{"reads the clock before several locks", "bound on keys taken together", bugs{take: func(s *reference, t taking) error {
		if len(t.charges) < 2 {
			return s.takeOnce(t)
		}
		return clockBeforeLock(true)(s, t)
	}}},
	{"pours one by one and takes back", "bound on keys taken together", bugs{take: pourAndTakeBack}},
	{"asks one by one and pours one by one", "all or none under contention", bugs{take: askThenPour}},
	{"checks, then acts", "settled under contention", bugs{take: checkThenAct}},
	{"reads, then settles", "settled under contention", bugs{settle: readThenSettle}},
	{"reads, then settles", "bound on what is settled", bugs{settle: readThenSettle}},
	{"reads the clock before it settles", "bound on what is settled", bugs{settle: clockBeforeSettling}},
	{"makes the same bucket twice when it settles", "settled under contention", bugs{settle: createThenSettle}},
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

func getOrCreate(s *reference, t taking) error {
	for _, c := range t.charges {
		kept := false
		s.locked(func() { _, kept = s.buckets[s.name(c)] })
		if kept {
			continue
		}
		elsewhere()
		s.locked(func() { s.buckets[s.name(c)] = new(bucket) })
	}
	return s.takeOnce(t)
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

// pourAndTakeBack ends with the right levels, but others are refused meanwhile
// for what nobody has got.
func pourAndTakeBack(s *reference, t taking) error {
	var reserved []taking
	fits := true
	for i := range t.charges {
		one := taking{t.ctx, t.charges[i : i+1], t.decisions[i : i+1]}
		s.takeOnce(one)
		fits = fits && t.decisions[i].Fits
		if t.decisions[i].Poured {
			reserved = append(reserved, one)
		}
		elsewhere()
	}
	for _, one := range reserved {
		if !fits {
			s.locked(func() { s.buckets[s.name(one.charges[0])].Level -= one.charges[0].Cost })
			one.decisions[0].Poured = false
		}
	}
	return nil
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

// clockBeforeSettling dates buckets with what the clock said when it was asked,
// and lets what has leaked since leak again.
func clockBeforeSettling(s *reference, all settling) error {
	for _, of := range all.settlements {
		var now leakybucket.Instant
		s.locked(func() { now = s.clock() })
		elsewhere()
		s.locked(func() {
			c := s.correct(of, now)
			c.after.At = now
			s.writeBack(c)
		})
	}
	return nil
}

func createThenSettle(s *reference, all settling) error {
	for _, of := range all.settlements {
		kept := false
		s.locked(func() { _, kept = s.buckets[s.name(of.Charge)] })
		if kept || of.Diff <= 0 {
			continue
		}
		elsewhere()
		s.locked(func() { s.buckets[s.name(of.Charge)] = new(bucket) })
	}
	return s.settleEach(all)
}

func giveBackLeaked(s *reference, all settling) error {
	return misread(func(of *leakybucket.Settlement) { of.Was.At = math.MaxInt64 / 2 })(s, all)
}
