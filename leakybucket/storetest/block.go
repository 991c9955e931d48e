package storetest

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

const us = time.Microsecond

// hammered is a charge to a bucket of 10 at 1/s that is blocked for a minute,
// then for ten minutes, then for an hour.
func hammered(cost float64) leakybucket.Charge {
	return blocking(charge("k", limit(10, 1), cost), time.Minute, 10*time.Minute, time.Hour)
}

// begins takes one charge that must overflow a bucket filled to level, and begin
// a block of it.
func (s *subject) begins(c leakybucket.Charge, level float64, until time.Duration) {
	s.Helper()
	s.take(charges(c), want{begins(until), level})
}

// blocked takes one charge that must find its bucket blocked.
func (s *subject) blocked(c leakybucket.Charge, level float64, until time.Duration) {
	s.Helper()
	s.take(charges(c), want{blocked(until), level})
}

func overflowBlocks(tb testing.TB, open Open) {
	s := beginHeld(tb, open, Need{})
	s.pours(hammered(9), 0)
	s.begins(hammered(2), 9, time.Minute)
	s.blocked(hammered(2), 9, time.Minute)
	s.at(time.Second)
	s.blocked(hammered(1), 8, time.Minute) // would fit
	s.blocked(hammered(0), 8, time.Minute)
	s.blocked(hammered(20), 8, time.Minute)
	s.at(30 * time.Second) // and nothing makes it longer
	s.blocked(hammered(20), 0, time.Minute)
	s.blocked(hammered(10), 0, time.Minute)
	s.at(time.Minute - us)
	s.blocked(hammered(1), 0, time.Minute)
	s.at(time.Minute)
	s.pours(hammered(10), 0)

	// A bucket beside it knows nothing of it.
	other := hammered(1)
	other.Key = "other"
	s.at(time.Minute + time.Second)
	s.begins(hammered(2), 9, time.Minute+time.Second+10*time.Minute)
	s.pours(other, 0)
}

// neverFitsNeverBlocks has costs that no waiting makes room for: oversize ones,
// and such as no caller should let through.
func neverFitsNeverBlocks(tb testing.TB, open Open) {
	for _, block := range []func(leakybucket.Charge) leakybucket.Charge{
		func(c leakybucket.Charge) leakybucket.Charge { return blocking(c, time.Minute) },
		func(c leakybucket.Charge) leakybucket.Charge { return blocking(c) },
	} {
		k := func(cost float64) leakybucket.Charge { return block(charge("k", limit(10, 1), cost)) }
		for _, level := range []float64{0, 4, 10} {
			s := beginHeld(tb, open, Need{})
			s.pours(k(level), 0)
			for _, cost := range []float64{10.001, 20, 1e12, -1, -1e-9, math.Inf(1), math.Inf(-1), math.NaN()} {
				s.refuses(k(cost), level)
				s.refuses(probe(k(cost)), level)
			}
			// Together they would be too much, each alone would not.
			s.take(charges(k(5.5), k(5)), want{refused, level}, want{refused, level})
			s.at(10 * time.Second)
			s.pours(k(10), 0)
		}
	}
}

// ladderClimbs lets a bucket overflow so long after each of its blocks ended.
func ladderClimbs(tb testing.TB, open Open) {
	const m, h = time.Minute, time.Hour
	type of []time.Duration
	for _, test := range []struct{ lengths, pauses of }{
		{of{m, 10 * m, h, h, h}, of{0, 0, 0, 0}}, // in the instant the last one ends
		{of{m, 10 * m, h, h}, of{m - us, 10*m - us, h - us}},
		{of{m, 10 * m, h}, of{0, 5 * m}}, // by the length of the last one, not of the first
		{of{m, m}, of{m}},                // from there on a store may have forgotten
		{of{m, m, 10 * m}, of{m + us, 0}},
		{of{m, m}, of{9 * m}}, // by the length of the last one, not of the next
		{of{m, m}, of{24 * h}},
		{of{m, 10 * m, m}, of{0, 10 * m}},
		{of{m, 10 * m, m}, of{0, 30 * m}},
		{of{m, 10 * m, h, m, 10 * m}, of{0, 0, h, 0}},
	} {
		s := beginHeld(tb, open, Need{})
		now := time.Duration(0)
		for i, length := range test.lengths {
			s.at(now)
			s.pours(hammered(10), 0)
			s.begins(hammered(1), 10, now+length)
			s.at(now + length - us)
			s.blocked(hammered(1), 0, now+length)
			step := uint8(slices.Index(hammered(1).Block.Steps, length))
			if d := s.decide(charges(hammered(1)))[0]; d.Step != step {
				s.Fatalf("step of a block of %v: got %d, want %d", length, d.Step, step)
			}
			now += length
			s.at(now)
			s.probes(hammered(10), 0)
			if i < len(test.pauses) {
				now += test.pauses[i]
			}
		}
	}
}

// blockUntilEmpty has blocks without steps.
func blockUntilEmpty(tb testing.TB, open Open) {
	s := beginHeld(tb, open, Need{})
	k := func(cost float64) leakybucket.Charge { return blocking(charge("k", limit(10, 1), cost)) }
	s.pours(k(7), 0)
	s.at(2 * time.Second)
	s.begins(k(6), 5, 7*time.Second)
	s.at(7*time.Second - 3*us)
	s.blocked(k(1), 3e-6, 7*time.Second)
	s.at(7*time.Second + 3*us)
	s.pours(k(10), 0)
	s.begins(k(1), 10, 17*time.Second+3*us)
	s.at(18 * time.Second)
	s.pours(k(10), 0)
	s.begins(k(1), 10, 28*time.Second) // there is no ladder to climb

	third := blocking(charge("third", limit(10, 3), 10))
	s.pours(third, 0)
	s.begins(third, 10, 18*time.Second+3_333_334*us)

	// In debt it takes longer, but no longer than a full bucket in debt.
	owing := inDebt(blocking(charge("owing", limit(10, 1), 10)), 5)
	s.settle(s.charged(owing, 0, 50))
	s.begins(owing, 15, 33*time.Second)
	lowered := charge("lowered", limit(100, 1), 90)
	s.pours(lowered, 0)
	lowered.Limit.Capacity, lowered.Cost = 10, 1
	s.begins(inDebt(blocking(lowered), 5), 90, 33*time.Second)
	s.at(33*time.Second + 3*us)
	s.begins(inDebt(blocking(lowered), 5), 75-3e-6, 48*time.Second+3*us)
}

// withoutBlock: a charge without a block neither begins nor heeds one.
func withoutBlock(tb testing.TB, open Open) {
	s := beginHeld(tb, open, Need{})
	plain := func(cost float64) leakybucket.Charge { return charge("k", limit(10, 1), cost) }
	s.pours(plain(10), 0)
	s.refuses(plain(1), 10)
	s.refuses(hammered(20), 10) // there is none to be found
	s.begins(hammered(1), 10, time.Minute)
	s.refuses(plain(1), 10)
	s.at(5 * time.Second)
	s.pours(plain(1), 5)
	s.probes(plain(1), 6)
	s.take(charges(plain(1), charge("beside", limit(10, 1), 1)), want{poured, 6}, want{poured, 0})
	s.blocked(hammered(1), 7, time.Minute) // others heed it still
}

func changedLadder(tb testing.TB, open Open) {
	k := func(cost float64, steps ...time.Duration) leakybucket.Charge {
		return blocking(charge("k", limit(10, 1), cost), steps...)
	}
	s := beginHeld(tb, open, Need{})
	s.pours(k(10), 0)
	s.begins(k(1, time.Minute, time.Hour), 10, time.Minute)
	s.at(30 * time.Second)
	s.blocked(k(1, time.Hour), 0, time.Minute) // a longer one does not last longer
	s.at(time.Minute)
	s.pours(k(10, time.Minute, time.Hour), 0)
	s.begins(k(1, time.Minute, time.Hour), 10, time.Hour+time.Minute)

	// Its step is not to be found in a shorter ladder: the last one is.
	s.at(time.Hour + 61*time.Second)
	s.pours(k(10, 2*time.Minute), 0)
	s.begins(k(1, 2*time.Minute), 10, time.Hour+181*time.Second)
	s.at(time.Hour + 181*time.Second)
	s.pours(k(10, time.Second, time.Hour, 2*time.Hour), 0)
	s.begins(k(1, time.Second, time.Hour, 2*time.Hour), 10, 2*time.Hour+181*time.Second)

	// A block that is further ahead than its step is long counts as over.
	s.at(time.Hour + 200*time.Second)
	s.pours(k(10, time.Second, time.Minute), 0)
	s.begins(k(1, time.Second, time.Minute), 10, time.Hour+201*time.Second)
}

// blockAndClockBack sets the clock back while a block runs. One that is further
// ahead than it is long was begun by a clock that is no longer right.
func blockAndClockBack(tb testing.TB, open Open) {
	begun := func() *subject {
		s := beginHeld(tb, open, Need{})
		s.pours(hammered(10), 0)
		s.at(20 * time.Second)
		s.pours(hammered(10), 0)
		s.begins(hammered(1), 10, 80*time.Second)
		return s
	}
	s := begun()
	s.at(25 * time.Second)
	s.blocked(hammered(1), 5, 80*time.Second)
	s.at(20 * time.Second)
	s.blocked(hammered(1), 10, 80*time.Second)
	s.at(19 * time.Second) // by the clock of another process
	s.blocked(hammered(1), 10, 80*time.Second)

	for _, back := range []time.Duration{time.Second + time.Microsecond, time.Hour, 366 * 24 * time.Hour} {
		now := 20*time.Second - back
		for _, look := range []func(s *subject){
			func(s *subject) { s.refuses(hammered(20), 10) },
			func(s *subject) { s.refuses(probe(hammered(20)), 10) },
			func(s *subject) {
				s.take(charges(charge("other", limit(10, 1), 1), hammered(20)), want{held, 0}, want{refused, 10})
			},
			func(s *subject) { s.settle(s.gone(hammered(1), -1)); s.settle(s.gone(hammered(1), 1)) },
		} {
			s := begun()
			s.at(now)
			look(s)
			s.at(40 * time.Second) // it stays over when the clock has caught up
			s.pours(hammered(10), 0)
			s.begins(hammered(1), 10, 100*time.Second) // and counts for no ladder
		}
		s := begun()
		s.at(now)
		s.begins(hammered(1), 10, now+time.Minute)
	}

	// Without steps, it is as long as a full bucket in debt takes to empty.
	k := func(cost float64) leakybucket.Charge { return inDebt(blocking(charge("k", limit(10, 1), cost)), 5) }
	for back, over := range map[time.Duration]bool{time.Second: false, 6 * time.Second: false, 7 * time.Second: true, time.Hour: true} {
		s := beginHeld(tb, open, Need{})
		s.pours(k(10), 0)
		s.begins(k(1), 10, 10*time.Second)
		s.at(-back)
		if over {
			s.begins(k(1), 10, 10*time.Second-back)
		} else {
			s.blocked(k(1), 10, 10*time.Second)
		}
	}
}

// guarded returns a charge of 1 to a bucket of 10 at 1/s that an overflow blocks
// for a minute, and then for an hour.
func guarded(key string) leakybucket.Charge {
	return blocking(charge(key, limit(10, 1), 1), time.Minute, time.Hour)
}

func costing(c leakybucket.Charge, cost float64) leakybucket.Charge {
	c.Cost = cost
	return c
}

// fill fills fresh buckets of 10.
func (s *subject) fill(all ...leakybucket.Charge) {
	s.Helper()
	for _, c := range all {
		s.pours(costing(c, 10), 0)
	}
}

// eachBlocksItsOwn takes charges together of which several overflow.
func eachBlocksItsOwn(tb testing.TB, open Open) {
	s := beginHeld(tb, open, Need{})
	a, b, c, fits := guarded("a"), guarded("b"), guarded("c"), guarded("fits")
	b.Block = blocking(b, time.Hour).Block
	plain := charge("plain", limit(10, 1), 1)
	s.fill(a, b, c, plain)
	s.take(charges(fits, a, plain, b, costing(c, 11)),
		want{held, 0}, want{begins(time.Minute), 10}, want{refused, 10}, want{begins(time.Hour), 10}, want{refused, 10})
	s.wantLevel(fits, 0)
	s.at(time.Second)
	s.take(charges(costing(c, 2), b, a, fits),
		want{begins(61 * time.Second), 9}, want{blocked(time.Hour), 9}, want{blocked(time.Minute), 9}, want{held, 0})
}

func blockOfOneBucketTwice(tb testing.TB, open Open) {
	s := beginHeld(tb, open, Need{})
	k := func(cost float64) leakybucket.Charge { return costing(guarded("k"), cost) }
	s.pours(k(5), 0)
	s.take(charges(k(3), guarded("other"), k(3)), want{begins(time.Minute), 5}, want{held, 0}, want{blocked(time.Minute), 5})
	s.take(charges(k(1), k(1)), want{blocked(time.Minute), 5}, want{blocked(time.Minute), 5})
	s.at(time.Minute)
	s.take(charges(k(5), k(5)), want{poured, 0}, want{poured, 5})
	s.take(charges(k(1), k(1)), want{begins(61 * time.Minute), 10}, want{blocked(61 * time.Minute), 10})

	// One fits beneath its ceiling, the other does not, and begins a block.
	high := guarded("high")
	low := below(high, 3)
	s.pours(costing(high, 5), 0)
	s.take(charges(high, low), want{held, 5}, want{begins(2 * time.Minute), 5})
	s.blocked(high, 5, 2*time.Minute)
	s.at(2 * time.Minute)
	s.pours(costing(high, 5), 0)
	s.take(charges(low, high), want{begins(62 * time.Minute), 5}, want{blocked(62 * time.Minute), 5})
	s.wantLevel(high, 5)
}

// shadowBlocks: shadow charges are blocked in buckets of their own, and stand in
// nobody's way.
func shadowBlocks(tb testing.TB, open Open) {
	s := beginHeld(tb, open, Need{})
	k, other := guarded("k"), guarded("other")
	s.fill(shadow(k), shadow(other))
	s.take(charges(shadow(k), k), want{begins(time.Minute), 10}, want{poured, 0})
	s.take(charges(k, shadow(k)), want{poured, 1}, want{blocked(time.Minute), 10})
	s.at(10 * time.Second)
	s.take(charges(k, shadow(k)), want{poured, 0}, want{blocked(time.Minute), 0})
	s.pours(costing(k, 9), 1)

	// Beside a refusal too, and the other way round.
	s.take(charges(shadow(costing(other, 9)), k), want{held, 0}, want{begins(70 * time.Second), 10})
	s.pours(costing(shadow(other), 9), 0)
	s.take(charges(k, costing(shadow(other), 2)), want{blocked(70 * time.Second), 10}, want{begins(70 * time.Second), 9})
	s.pours(other, 0)
	s.at(time.Minute)
	s.pours(shadow(k), 0)
	s.blocked(k, 0, 70*time.Second)
}

// probeBlocks: too high a cost overflows, whether it was to be poured or
// not.
func probeBlocks(tb testing.TB, open Open) {
	s := beginHeld(tb, open, Need{})
	k, other := guarded("k"), guarded("other")
	s.fill(k)
	s.begins(probe(k), 10, time.Minute)
	s.blocked(probe(k), 10, time.Minute)
	s.blocked(k, 10, time.Minute)
	s.at(time.Minute)
	s.probes(k, 0)
	s.pours(costing(k, 10), 0)
	s.take(charges(other, probe(k)), want{held, 0}, want{begins(61 * time.Minute), 10})
	s.pours(other, 0)
	s.fill(shadow(k))
	s.take(charges(other, probe(shadow(k))), want{poured, 1}, want{begins(2 * time.Minute), 10})
	s.blocked(shadow(k), 10, 2*time.Minute)
	s.blocked(k, 10, 61*time.Minute)
}

// settlingKeepsBlocks: a settlement neither blocks nor unblocks, and the next
// block is of the next step all the same.
func settlingKeepsBlocks(tb testing.TB, open Open) {
	k := func(cost float64) leakybucket.Charge { return inDebt(hammered(cost), 10) }
	for _, settlement := range []leakybucket.Settlement{{Diff: 3}, {Diff: 50}, {Diff: -5}, {Diff: 0}, {Cancel: true}} {
		s := beginHeld(tb, open, Need{})
		settled := func(was leakybucket.Settlement) {
			s.Helper()
			was.Diff, was.Cancel = settlement.Diff, settlement.Cancel
			s.settle(was)
		}
		settled(s.charged(k(10), 0, 0))
		now := 30 * time.Second
		s.at(now) // far above the capacity or not, it was not blocked
		s.pours(k(1), 0)
		for i, length := range []time.Duration{time.Minute, 10 * time.Minute, time.Hour} {
			running := s.charged(k(9), float64(max(0, 1-i)), 0)
			s.begins(k(2), 9+float64(max(0, 1-i)), now+length)
			settled(running)
			s.blocked(k(1), s.level(k(0)), now+length)
			s.at(now + length - us)
			s.blocked(k(1), 0, now+length)
			now += length
			s.at(now)
			settled(s.charged(k(10), 0, 0))
			now += 30 * time.Second
			s.at(now)
		}
	}
}

// blocksContended lets many overflow the same bucket at once: one of them begins
// its block, and the others find it.
func blocksContended(tb testing.TB, open Open) {
	s := beginHeld(tb, open, Need{})
	const workers, rounds = 10, 200
	var made [workers][rounds]leakybucket.Decision
	race(workers, rounds, func(w, round int) {
		k := costing(guarded(fmt.Sprint("k", round)), 6)
		all := charges(k)
		if w%3 == 1 {
			all = charges(k, guarded(fmt.Sprint("beside", w, "/", round)))
		}
		decisions := make([]leakybucket.Decision, len(all))
		if s.try(all, decisions) {
			made[w][round] = decisions[0]
		}
	})
	wrong, example := 0, ""
	for round := range rounds {
		pours, begun, found := 0, 0, 0
		for w := range made {
			switch d := made[w][round]; {
			case d.Poured:
				pours++
			case d.Began && d.BlockedUntil == epoch.Add(time.Minute):
				begun++
			case d.BlockedUntil == epoch.Add(time.Minute):
				found++
			}
		}
		if pours != 1 || begun != 1 || found != workers-2 {
			wrong, example = wrong+1, fmt.Sprintf("%d, %d and %d", pours, begun, found)
		}
	}
	if wrong > 0 {
		s.Errorf("pours, blocks begun and blocks found, of %d takes of 6 at once from a bucket of 10: got other than 1, 1 and %d in %d of %d buckets (%s)",
			workers, workers-2, wrong, rounds, example)
	}
}
