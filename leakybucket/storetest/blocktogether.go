package storetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

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

// blockedBesideOthers: all or none is poured, and the bucket that is blocked has
// room.
func blockedBesideOthers(tb testing.TB, open Open) {
	s := beginHeld(tb, open, Need{})
	k, other := guarded("k"), guarded("other")
	s.fill(k)
	s.begins(k, 10, time.Minute)
	s.at(20 * time.Second)
	for range 3 {
		s.take(charges(k, other), want{blocked(time.Minute), 0}, want{held, 0})
		s.take(charges(other, k), want{held, 0}, want{blocked(time.Minute), 0})
		s.take(charges(other, probe(k), shadow(other)), want{held, 0}, want{blocked(time.Minute), 0}, want{held, 0})
	}
	s.wantLevel(other, 0)
	s.wantLevel(shadow(other), 0)
	s.at(time.Minute)
	s.take(charges(other, k), want{poured, 0}, want{poured, 0})
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

	// One fits beneath its ceiling, the other does not, and begins a block that
	// what the first pours must not undo.
	low := below(shadow(guarded("low")), 3)
	high := below(low, 0)
	s.pours(costing(high, 5), 0)
	s.take(charges(high, low), want{poured, 5}, want{begins(2 * time.Minute), 5})
	s.blocked(high, 6, 2*time.Minute)
	s.at(2 * time.Minute)
	s.pours(costing(high, 5), 0)
	s.take(charges(low, high), want{begins(62 * time.Minute), 5}, want{blocked(62 * time.Minute), 5})
	s.wantLevel(high, 5)
}

// shadowBlocks: what would be blocked is, in buckets of its own, and stands in
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

// probeBlocks: who asks for too much overflows, whether it was to be poured or
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
