package storetest

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

func allOrNone(tb testing.TB, open Open) {
	s := beginHeld(tb, open, Need{})
	roomy := func(cost float64) leakybucket.Charge { return charge("roomy", limit(100, 1), cost) }
	scarce := func(cost float64) leakybucket.Charge { return charge("scarce", limit(3, 1), cost) }
	other := func(cost float64) leakybucket.Charge { return charge("other", limit(100, 1), cost) }
	s.take(charges(roomy(5), scarce(2), other(7)), want{poured, 0}, want{poured, 0}, want{poured, 0})
	s.take(charges(roomy(5), scarce(2), other(7)), want{held, 5}, want{refused, 2}, want{held, 7})
	s.take(charges(scarce(2), roomy(5)), want{refused, 2}, want{held, 5})
	s.take(charges(roomy(5), scarce(2)), want{held, 5}, want{refused, 2})
	s.take(charges(roomy(5), scarce(1)), want{poured, 5}, want{poured, 2})
	s.wantLevel(roomy(0), 10)
	s.wantLevel(scarce(0), 3)
	s.wantLevel(other(0), 7)
}

func sameBucketTwice(tb testing.TB, open Open) {
	s := beginHeld(tb, open, Need{})
	k := func(cost float64) leakybucket.Charge { return charge("k", limit(10, 1), cost) }
	full := charge("full", limit(1, 1), 1)
	s.pours(full, 0)

	s.take(charges(k(6), k(6)), want{refused, 0}, want{refused, 0}) // each would fit alone
	s.take(charges(k(3), k(3), full), want{held, 0}, want{held, 0}, want{refused, 1})
	s.take(charges(k(2), k(3)), want{poured, 0}, want{poured, 2})
	s.wantLevel(k(0), 5)
	other := charge("other", limit(10, 1), 1)
	s.take(charges(k(1), other, k(1), k(3)), want{poured, 5}, want{poured, 0}, want{poured, 6}, want{poured, 7})
	s.wantLevel(k(0), 10)
	s.wantLevel(other, 1)
	s.take(charges(k(0), k(0)), want{refused, 10}, want{refused, 10})

	sk := func(cost float64) leakybucket.Charge { return shadow(k(cost)) }
	s.take(charges(sk(6), sk(6)), want{refused, 0}, want{refused, 0})
	s.take(charges(sk(6), other, sk(4)), want{poured, 0}, want{poured, 1}, want{poured, 6})
	s.wantLevel(sk(0), 10)
}

func manyCharges(tb testing.TB, open Open) {
	s := beginHeld(tb, open, Need{})
	s.take(nil)
	s.take(charges())

	const n = 20
	all := make([]leakybucket.Charge, n)
	wants := make([]want, n)
	for i := range all {
		all[i] = charge(fmt.Sprint("k", i), limit(float64(i+1), 1), float64(i+1))
		wants[i] = want{poured, 0}
	}
	s.take(all, wants...)
	for _, c := range all {
		s.refuses(c, c.Cost)
	}

	// The last of many refuses for all of them.
	for i := range all {
		all[i].Key = fmt.Sprint("other", i%7) // some of them several times
		all[i].Limit, all[i].Cost = limit(100, 1), 1
		wants[i] = want{held, 0}
	}
	all[n-1] = charge("k0", limit(1, 1), 1)
	wants[n-1] = want{refused, 1}
	s.take(all, wants...)
	all[n-1].Cost = 0
	s.take(all, wants...)
	for i := range 7 {
		s.wantLevel(all[i], 0)
	}
}

// oddNames are zones and keys that a store may take for each other. There is no zone with a
// slash, which the contract excludes.
var oddNames = [][2]string{
	{"a", ""},
	{"a", "b"},
	{"a", "b/"},
	{"a", "/b"},
	{"a", "b/c"},
	{"a", "b//c"},
	{"a", "/"},
	{"a", "//"},
	{"ab", "c"},
	{"a", "bc"},
	{"A", "b"},
	{"a", "B"},
	{"a.b", "c"},
	{"a", "b.c"},
	{"a-b", "c"},
	{"a_b", "c"},
	{"a", "a"},
	{"b", "a"},
	{"a", "~a"},
	{"a", "~b"},
	{"a", "a/b"},
	{"a", " b"},
	{"a", "b "},
	{"a", "b\n"},
	{"a", "b\r\n"},
	{"a", "\t"},
	{"a", "\x00"},
	{"a", "b\x00"},
	{"a", "b\x00c"},
	{"a", "b\x00d"},
	{"a", "\xff"},
	{"a", "\xfe"},
	{"a", "b\xff"},
	{"a", "\xc3\x28"},
	{"a", "\xed\xa0\x80"},
	{"a", "\ufffd"},
	{"a", "é"},
	{"a", "e\u0301"},
	{"a", "ß"},
	{"a", "ss"},
	{"a", "K"},
	{"a", "k"},
	{"a", "\u212a"},
	{"a", "日本"},
	{"a", "1"},
	{"a", "01"},
	{"a", "1.0"},
	{"a", "-1"},
	{"a", "null"},
	{"a", "NaN"},
	{"a", "%62"},
	{"a", "%"},
	{"a", "_"},
	{"a", "*"},
	{"a", "?"},
	{"a", "{b}"},
	{"a", "{b}c"},
	{"a", "\\x62"},
	{"a", "'"},
	{"a", "''"},
	{"a", `"`},
	{"a", `\`},
	{"a", "'; DROP TABLE buckets; --"},
	{"a", "$1"},
	{"a", "2001:db8::/64"},
	{"a", strings.Repeat("x", 256)},
	{"a", strings.Repeat("x", 257)},
	{"a", strings.Repeat("x", 10_000)},
	{"a", strings.Repeat("x", 10_000) + "y"},
	{"a", strings.Repeat("x", 10_000) + "z"},
}

// keysAreBytes fails where a store lets two names fall together.
func keysAreBytes(tb testing.TB, open Open) {
	s := beginHeld(tb, open, Need{})
	names := slices.Clone(oddNames)
	for last := range 256 {
		names = append(names, [2]string{"last", "prefix" + string([]byte{byte(last)})})
	}
	named := func(i int, cost float64) leakybucket.Charge {
		return leakybucket.Charge{Zone: names[i][0], Key: names[i][1], Limit: limit(1000, 1), Cost: cost}
	}
	for i := range names {
		s.pours(named(i, float64(i+1)), 0)
		s.pours(shadow(named(i, float64(i)+1.5)), 0)
	}
	for i := range names {
		s.wantLevel(named(i, 0), float64(i+1))
		s.wantLevel(shadow(named(i, 0)), float64(i)+1.5)
		s.settle(s.gone(named(i, 1), -0.25), s.gone(shadow(named(i, 1)), 0.25))
	}
	for i := range names {
		s.wantLevel(named(i, 0), float64(i)+0.75)
		s.wantLevel(shadow(named(i, 0)), float64(i)+1.75)
	}
}

// cancelledContext accepts an error as well as an answer, since a store that
// asks nobody has no reason to look. But an error tells the caller that nothing
// was begun.
func cancelledContext(tb testing.TB, open Open) {
	s := beginHeld(tb, open, Need{})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	c := charge("k", limit(1000, 1), 1)
	s.pours(c, 0)
	level := 1.0
	for range 100 {
		decisions := make([]leakybucket.Decision, 1)
		if err := s.store.Take(ctx, charges(c), decisions); err != nil {
			continue
		}
		if err := s.compare(c, decisions[0], want{poured, level}); err != nil {
			s.Fatalf("take with a cancelled context and no error: %v", err)
		}
		level++
	}
	s.pours(c, level)
	s.wantLevel(c, level+1)
}

// argumentsReturned: after a call the slices are the caller's again, also when its context ended
// while the call was under way. A caller that uses them for its next call must not be charged, nor
// answered, twice.
func argumentsReturned(tb testing.TB, open Open) {
	s := begin(tb, open, Need{})
	l := limit(1e6, 1e-9)
	wrong := charge("wrong", l, 1)
	all, decisions := charges(wrong), make([]leakybucket.Decision, 1)
	settlements := []leakybucket.Settlement{{}}
	mine := leakybucket.Decision{Level: 7, Step: 7}
	for i := range 300 {
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(i)*5*time.Microsecond)
		if i%10 == 0 {
			cancel() // it has ended before
		}
		all[0].Key = "right"
		_ = s.store.Take(ctx, all, decisions)
		all[0], decisions[0] = wrong, mine
		settlements[0] = leakybucket.Settlement{Charge: charge("right", l, 1), Was: leakybucket.Decision{Poured: true, At: 1}, Diff: 1}
		settlements[0].Charge.Debt = 1e6
		_ = s.store.Settle(ctx, settlements)
		settlements[0].Charge = wrong
		cancel()
		s.decide(charges(charge("other", l, 1)))
		s.settle(leakybucket.Settlement{Charge: charge("other", l, 1), Was: leakybucket.Decision{Poured: true, At: 1}, Diff: 1})
		if decisions[0] != mine {
			s.Fatalf("the decisions of a take that has returned: got %+v written into them", decisions[0])
		}
	}
	s.wantLevel(wrong, 0)
}

func probePoursNothing(tb testing.TB, open Open) {
	s := beginHeld(tb, open, Need{})
	k := func(cost float64) leakybucket.Charge { return charge("k", limit(10, 1), cost) }
	for range 3 {
		s.probes(k(6), 0)
		s.probes(k(10), 0)
		s.probes(k(0), 0)
	}
	s.refuses(probe(k(10.001)), 0)
	for _, cost := range []float64{-1, math.NaN(), math.Inf(1), math.Inf(-1)} {
		s.refuses(probe(k(cost)), 0)
	}
	s.bucketsAre(0)
	s.at(-5 * time.Second)
	s.pours(k(4), 0) // into a bucket that no probe has dated
	s.at(-3 * time.Second)
	s.probes(k(1), 2)
	s.at(-4 * time.Second)
	s.wantLevel(k(0), 3) // nor dates one that is there
	s.at(time.Second)
	s.pours(k(10), 0)
	s.refuses(probe(k(0)), 10)
	s.refuses(probe(k(1)), 10)
	s.at(2 * time.Second)
	s.probes(k(1), 9)
	s.refuses(probe(k(1.5)), 9)
	s.pours(k(1), 9)
}

// bucketsAre compares how many buckets are kept, if the store can tell.
func (s *subject) bucketsAre(want int) {
	s.Helper()
	if _, ok := s.store.(bucketCounter); !ok {
		return
	}
	if got := s.buckets(); got != want {
		s.Fatalf("buckets: got %d, want %d", got, want)
	}
}

// probeBeside asks for probes together with charges that are to be poured.
func probeBeside(tb testing.TB, open Open) {
	s := beginHeld(tb, open, Need{})
	k := func(cost float64) leakybucket.Charge { return charge("k", limit(10, 1), cost) }
	other := func(cost float64) leakybucket.Charge { return charge("other", limit(10, 1), cost) }
	full := charge("full", limit(1, 1), 1)
	s.pours(full, 0)

	s.take(charges(probe(k(3)), other(1)), want{held, 0}, want{poured, 0})
	s.take(charges(other(1), probe(k(3))), want{poured, 1}, want{held, 0})
	s.take(charges(probe(full), other(1)), want{refused, 1}, want{held, 2})
	s.take(charges(other(1), shadow(k(1)), probe(full)), want{held, 2}, want{held, 0}, want{refused, 1})
	s.take(charges(probe(k(3)), full), want{held, 0}, want{refused, 1})
	s.take(charges(probe(k(3)), probe(other(3))), want{held, 0}, want{held, 2})
	s.take(charges(probe(k(3)), probe(full)), want{held, 0}, want{refused, 1})
	s.wantLevel(k(0), 0)
	s.wantLevel(other(0), 2)
	s.wantLevel(shadow(k(0)), 0)

	// A probe of the same bucket counts with the others, and is not poured.
	s.take(charges(probe(k(6)), k(6)), want{refused, 0}, want{refused, 0})
	s.take(charges(k(6), probe(k(6))), want{refused, 0}, want{refused, 0})
	s.take(charges(probe(k(4)), k(6)), want{held, 0}, want{poured, 0})
	s.wantLevel(k(0), 6)
	s.take(charges(k(2), probe(k(2))), want{poured, 6})
	s.wantLevel(k(0), 8)
	s.take(charges(probe(k(1)), probe(k(1))), want{held, 8}, want{held, 8})
	s.take(charges(probe(k(1)), probe(k(1.5))), want{refused, 8}, want{refused, 8})
	s.wantLevel(k(0), 8)
}

func shadowRefusesNobody(tb testing.TB, open Open) {
	s := beginHeld(tb, open, Need{})
	full := shadow(charge("full", limit(1, 1), 1))
	enforced := charge("enforced", limit(10, 1), 1)
	s.pours(full, 0)
	s.take(charges(full, enforced), want{refused, 1}, want{poured, 0})
	s.take(charges(enforced, full), want{poured, 1}, want{refused, 1})
	s.wantLevel(full, 1) // its own overflow pours nothing, as if it were enforced
	s.at(time.Second)
	s.take(charges(full, enforced), want{poured, 0}, want{poured, 1})
}

// shadowTogether: the shadow charges of one take are poured all or none.
func shadowTogether(tb testing.TB, open Open) {
	s := beginHeld(tb, open, Need{})
	small, large := shadow(charge("small", limit(2, 1), 1)), shadow(charge("large", limit(5, 1), 1))
	enforced := charge("enforced", limit(3, 1), 1)
	all := charges(small, enforced, large)
	s.take(all, want{poured, 0}, want{poured, 0}, want{poured, 0})
	s.take(all, want{poured, 1}, want{poured, 1}, want{poured, 1})
	s.take(all, want{refused, 2}, want{poured, 2}, want{held, 2})
	s.take(all, want{refused, 2}, want{refused, 3}, want{held, 2})
	s.take(charges(large, small), want{held, 2}, want{refused, 2})
	s.take(charges(large, probe(small)), want{held, 2}, want{refused, 2})
	s.take(charges(large, shadow(enforced)), want{poured, 2}, want{poured, 0})
	s.wantLevel(large, 3)
}

// shadowBesideRefusal: a client refused by another zone has not used this one, be
// it shadow or not.
func shadowBesideRefusal(tb testing.TB, open Open) {
	s := beginHeld(tb, open, Need{})
	full := charge("full", limit(1, 1), 1)
	s.pours(full, 0)
	watched := shadow(charge("watched", limit(10, 1), 3))
	s.take(charges(watched, full), want{held, 0}, want{refused, 1})
	s.take(charges(full, watched), want{refused, 1}, want{held, 0})
	overflowing := shadow(charge("overflowing", limit(2, 1), 3))
	s.take(charges(watched, overflowing, full), want{held, 0}, want{refused, 0}, want{refused, 1})
	s.wantLevel(watched, 0)
	s.pours(watched, 0)
}
