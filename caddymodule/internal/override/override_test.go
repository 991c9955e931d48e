package override

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/perkey"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// hour is a span of an hour.
func hour(since time.Time, note string) Span {
	return Span{Since: since, Until: since.Add(time.Hour), Note: note}
}

var night = time.Date(2026, 1, 1, 3, 0, 0, 0, time.UTC)

func TestALimitIsReadAsPeopleWriteIt(t *testing.T) {
	for text, want := range map[string]leakybucket.Limit{
		"x0.5":     {Capacity: 50, Leak: 5},
		"x2":       {Capacity: 200, Leak: 20},
		"10  1/s":  {Capacity: 10, Leak: 1},
		"x0.001":   {Capacity: 2, Leak: 0.01}, // the dearest request still fits
		" x1.000 ": {Capacity: 100, Leak: 10},
	} {
		l, err := ParseLimit(text, nil)
		if err != nil {
			t.Errorf("%q: got error %v, want none", text, err)
			continue
		}
		if rule, got := l.apply(perkey.Limited, leakybucket.Limit{Capacity: 100, Leak: 10}, 2); rule != perkey.Limited || got != want {
			t.Errorf("%q: got %v, want %v", text, got, want)
		}
	}
	for _, text := range []string{"", "x", "x0", "x-1", "xNaN", "x1e9", "10", "10 1", "0 1/s", "allow", "x0.5x", "\x00"} {
		if _, err := ParseLimit(text, nil); err == nil {
			t.Errorf("%q: got no error, want one", text)
		}
	}
}

// TestALimitOfAZoneLeavesWhomTheConfigNames: a factor of no limit is none, and a zone that is
// changed lets nobody in whom an override denies.
func TestALimitOfAZoneLeavesWhomTheConfigNames(t *testing.T) {
	ten := leakybucket.Limit{Capacity: 10, Leak: 1}
	for _, test := range []struct {
		was       perkey.Rule
		text, key string
		want      perkey.Rule
		limit     leakybucket.Limit
	}{
		{perkey.Unlimited, "x0.5", "", perkey.Unlimited, leakybucket.Limit{}},
		{perkey.Unlimited, "x0.5", "k", perkey.Unlimited, leakybucket.Limit{}},
		{perkey.Unlimited, "10 1/s", "", perkey.Limited, ten},
		{perkey.Unlimited, "1 1/s", "k", perkey.Limited, leakybucket.Limit{Capacity: 2, Leak: 1}}, // the dearest request fits
		{perkey.Unlimited, "deny", "", perkey.Denied, leakybucket.Limit{}},
		{perkey.Denied, "x2", "", perkey.Denied, leakybucket.Limit{}},
		{perkey.Denied, "10 1/s", "", perkey.Denied, leakybucket.Limit{}},
		{perkey.Denied, "10 1/s", "k", perkey.Limited, ten},
		{perkey.Denied, "unlimited", "", perkey.Denied, leakybucket.Limit{}},
		{perkey.Denied, "unlimited", "k", perkey.Unlimited, leakybucket.Limit{}},
		{perkey.Limited, "10 1/s", "", perkey.Limited, leakybucket.Limit{}}, // slots alone
	} {
		l, err := ParseLimit(test.text, nil)
		l.Key = test.key
		if rule, limit := l.apply(test.was, leakybucket.Limit{}, 2); err != nil || rule != test.want || limit != test.limit {
			t.Errorf("%s for %q of rule %v: got %v %v, %v, want %v %v", test.text, test.key, test.was, rule, limit, err, test.want, test.limit)
		}
	}
}

func TestAnOverrideEndsByItself(t *testing.T) {
	var table Table
	limit, err := ParseLimit("deny", nil)
	if err != nil {
		t.Fatal(err)
	}
	held := hour(night, "")
	table.Apply(night, ban(t, "203.0.113.0/24", held), NewShadow("", held), NewShadow("z", held), NewLimit("z", "k", limit, held))
	set, client := table.Load(), netip.MustParseAddr("203.0.113.7")
	for after, holds := range map[time.Duration]bool{0: true, time.Hour - 1: true, time.Hour: false} {
		now := night.Add(after)
		if got := set.Banned(client, now) != nil; got != holds {
			t.Errorf("banned after %v: got %v, want %v", after, got, holds)
		}
		if set.AllShadow(now) != holds || set.Shadow("z", now) != holds || set.Shadow("other", now) != holds {
			t.Errorf("shadow after %v: want %v", after, holds)
		}
		if rule, _ := set.Apply("z", "k", perkey.Limited, leakybucket.Limit{Capacity: 1, Leak: 1}, 1, now); (rule == perkey.Denied) != holds {
			t.Errorf("limit after %v: got rule %v, want deny: %v", after, rule, holds)
		}
	}
	if got := table.List(night.Add(time.Hour)); len(got) != 0 || table.Load() != nil {
		t.Errorf("after an hour: got %+v, want nothing left, and a nil set", got)
	}
}

func ban(t *testing.T, network string, held Span) Entry {
	t.Helper()
	e, err := NewBan(netip.MustParsePrefix(network), held)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func ended(e Entry) Entry {
	e.Ended = true
	return e
}

func TestTheLongestPrefixOfABanCounts(t *testing.T) {
	var table Table
	for _, network := range []string{"203.0.0.0/16", "203.0.113.0/24", "2001:db8::/32"} {
		table.Apply(night, ban(t, network, hour(night, network)))
	}
	for addr, want := range map[string]string{
		"203.0.113.7":          "203.0.113.0/24",
		"203.0.1.1":            "203.0.0.0/16",
		"::ffff:203.0.113.7":   "203.0.113.0/24",
		"64:ff9b::203.0.113.7": "203.0.113.0/24",
		"203.1.0.0":            "",
		"2001:db8:1::1%eth0":   "2001:db8::/32",
		"2001:db9::":           "",
	} {
		got := ""
		if ban := table.Load().Banned(netip.MustParseAddr(addr), night); ban != nil {
			got = ban.Note
		}
		if got != want {
			t.Errorf("%s: got the ban of %q, want %q", addr, got, want)
		}
	}
	table.Apply(night, ended(ban(t, "203.0.113.0/24", hour(night, ""))))
	if got := table.Load().Banned(netip.MustParseAddr("203.0.113.7"), night); got == nil || got.Note != "203.0.0.0/16" {
		t.Errorf("without the longer one: got %+v, want the shorter one", got)
	}
}

func TestWhatIsTooLongOrTooLargeIsRefused(t *testing.T) {
	for _, network := range []string{"10.0.0.0/7", "2001::/15", "::ffff:10.0.0.0/104", "64:ff9b::10.0.0.0/104", "::ffff:0:10.0.0.0/104"} {
		if _, err := NewBan(netip.MustParsePrefix(network), hour(night, "")); err == nil {
			t.Errorf("%s: got no error, want one", network)
		}
	}
	for _, long := range []string{"by", "note"} {
		text := map[string]string{long: strings.Repeat("x", longestNote+1)}
		if _, err := NewSpan(night, time.Hour, text["by"], text["note"]); err == nil {
			t.Errorf("%s too long: got no error, want one", long)
		}
	}
	for _, length := range []time.Duration{-1, Longest + 1} {
		if _, err := NewSpan(night, length, "", ""); err == nil {
			t.Errorf("%v: got no error, want one", length)
		}
	}
}

func TestTwoWritersLoseNothing(t *testing.T) {
	var table Table
	var writers sync.WaitGroup
	for w := range 4 {
		writers.Go(func() {
			for i := range 50 {
				table.Apply(night, NewShadow(fmt.Sprint(w, " ", i), hour(night, "")))
				table.Load().Shadow("0 0", night)
			}
		})
	}
	writers.Wait()
	if got := len(table.List(night)); got != 200 {
		t.Errorf("got %d switches, want 200", got)
	}
}

func TestAChangeWithoutAnEndHoldsForThirtyDays(t *testing.T) {
	var table Table
	held, err := NewSpan(night, 0, "alice", "a note")
	if err != nil {
		t.Fatal(err)
	}
	table.Apply(night, NewShadow("", held))
	last := night.Add(Longest - 1)
	if !table.Load().AllShadow(last) || table.Load().AllShadow(last.Add(1)) {
		t.Errorf("got %+v, want it to end after %v", table.List(last), Longest)
	}
	if got := table.List(last); len(got) != 1 || got[0].Left(last) != 1 || !got[0].Until.Equal(last.Add(1)) {
		t.Errorf("got %+v, want the switch, and its end", got)
	}
	if table.Apply(last, ended(NewShadow("", held))); table.Load() != nil {
		t.Error("got a switch that was ended")
	}
}
