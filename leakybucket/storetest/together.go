package storetest

import (
	"context"
	"fmt"
	"strings"
	"testing"

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

// keysAreBytes fails where a store lets two names fall together. It leaves out
// a slash in a zone, which the contract excludes.
func keysAreBytes(tb testing.TB, open Open) {
	s := beginHeld(tb, open, Need{})
	names := [][2]string{
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
