package override

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/perkey"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

var night = time.Date(2026, 1, 1, 3, 0, 0, 0, time.UTC)

// entry returns one that holds for an hour.
func entry(kind Kind, zone, key, limit string) Entry {
	return Entry{Name: Name{kind, zone, key}, Span: Span{Since: night, Until: night.Add(time.Hour), Note: key}, Limit: limit}
}

func held(t *testing.T, e Entry) *Held {
	t.Helper()
	h, err := e.compile()
	check.OK(t, err, "%+v", e)
	return h
}

func TestALimitIsReadAsPeopleWriteIt(t *testing.T) {
	hundred, huge := leakybucket.Limit{Capacity: 100, Leak: 10}, leakybucket.Limit{Capacity: 1e12, Leak: 1e12}
	for text, want := range map[string]leakybucket.Limit{
		"x0.5":   {Capacity: 50, Leak: 5},
		"x2":     {Capacity: 200, Leak: 20},
		"10 1/s": {Capacity: 10, Leak: 1},
		"x0.001": {Capacity: 2, Leak: 0.01}, // the dearest request still fits
		"x1.000": {Capacity: 100, Leak: 10},
	} {
		rule, got := held(t, entry(OfLimit, "z", "", text)).apply(perkey.Limited, hundred, 2)
		check.That(t, rule == perkey.Limited && got == want, "%q: got %v, want %v", text, got, want)
	}
	plan := entry(OfLimit, "z", "", "gold")
	plan.Plan = hundred
	_, got := held(t, plan).apply(perkey.Limited, huge, 2)
	check.Equal(t, got, hundred, "the limit of a plan")
	_, got = held(t, entry(OfLimit, "z", "", "x1000")).apply(perkey.Limited, huge, 2)
	check.Equal(t, got, huge, "after a factor that makes no limit of it")
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
		{perkey.Limited, "1 1/s", "", perkey.Limited, leakybucket.Limit{Capacity: 1, Leak: 1}}, // it did not fit before
		{perkey.Denied, "x2", "", perkey.Denied, leakybucket.Limit{}},
		{perkey.Denied, "10 1/s", "", perkey.Denied, leakybucket.Limit{}},
		{perkey.Denied, "10 1/s", "k", perkey.Limited, ten},
		{perkey.Denied, "unlimited", "", perkey.Denied, leakybucket.Limit{}},
		{perkey.Denied, "unlimited", "k", perkey.Unlimited, leakybucket.Limit{}},
	} {
		rule, limit := held(t, entry(OfLimit, "z", test.key, test.text)).apply(test.was, leakybucket.Limit{}, 2)
		check.That(t, rule == test.want && limit == test.limit, "%s for %q of rule %v: got %v %v, want %v %v", test.text, test.key, test.was, rule, limit, test.want, test.limit)
	}
}

func TestAnOverrideEndsByItself(t *testing.T) {
	var table Table
	table.Apply(night, entry(OfBan, "", "203.0.113.0/24", ""), entry(OfShadow, "", "", ""), entry(OfShadow, "z", "", ""), entry(OfLimit, "z", "k", "deny"))
	set, client := table.Load(), netip.MustParseAddr("203.0.113.7")
	for after, holds := range map[time.Duration]bool{0: true, time.Hour - 1: true, time.Hour: false} {
		now := night.Add(after)
		check.Equal(t, set.Banned(client, now) != nil, holds, "banned after %v", after)
		check.That(t, set.AllShadow(now) == holds && set.Shadow("z", now) == holds && set.Shadow("other", now) == holds, "shadow after %v: want %v", after, holds)
		rule, _ := set.Apply("z", "k", perkey.Limited, leakybucket.Limit{Capacity: 1, Leak: 1}, 1, now)
		check.That(t, (rule == perkey.Denied) == holds, "limit after %v: got rule %v, want deny: %v", after, rule, holds)
	}
	got := table.List(night.Add(time.Hour))
	set = table.Load()
	check.That(t, len(got) == 0 && set == nil && set.Banned(client, night) == nil && !set.AllShadow(night) && set.Limit("z", "k", night) == nil, "after an hour: got %+v, want nothing left, and a nil set", got)
	table.Apply(night, entry(OfShadow, "z", "", ""))
	set, got = table.Load(), table.List(night)
	check.That(t, len(got) == 1 && set.Shadow("z", night) && !set.Shadow("other", night) && !set.AllShadow(night), "got %+v, want one zone in shadow", got)
}

func TestTheLongestPrefixOfABanCounts(t *testing.T) {
	var table Table
	for _, network := range []string{"203.0.0.0/16", "203.0.113.0/24", "2001:db8::/32", "203.0.64.0/18", "203.0.113.8/29"} {
		table.Apply(night, entry(OfBan, "", network, ""))
	}
	for addr, want := range map[string]string{
		"203.0.113.7":          "203.0.113.0/24",
		"203.0.113.9":          "203.0.113.8/29",
		"203.0.113.0/24":       "203.0.113.0/24",
		"203.0.113.0/23":       "203.0.64.0/18", // not all of it by the longer one
		"203.0.0.0/15":         "",
		"203.0.1.1":            "203.0.0.0/16",
		"::ffff:203.0.113.7":   "203.0.113.0/24",
		"64:ff9b::203.0.113.7": "203.0.113.0/24",
		"203.1.0.0":            "",
		"2001:db8:1::1%eth0":   "2001:db8::/32",
		"2001:db9::":           "",
	} {
		network, err := netip.ParsePrefix(addr)
		got, ban := "", table.Load().BannedAll(network, night)
		if err != nil {
			ban = table.Load().Banned(netip.MustParseAddr(addr), night)
		}
		if ban != nil {
			got = ban.Note
		}
		check.Equal(t, got, want, "%s: the ban", addr)
	}
	end := entry(OfBan, "", "203.0.113.0/24", "")
	end.Ended = true
	table.Apply(night, end)
	got := table.Load().Banned(netip.MustParseAddr("203.0.113.7"), night)
	check.That(t, got != nil && got.Note == "203.0.64.0/18", "without the longer one: got %+v, want the shorter one", got)
}

func TestWhatNobodyCanMeanIsRefused(t *testing.T) {
	wrong := []Entry{entry(OfShadow, "z", "k", ""), entry(OfLimit, "", "", "deny"), entry("other", "z", "", "deny"), entry(OfShadow, "a/b", "", ""), {Name: Name{OfBan, "", "203.0.113.7/24"}, Ended: true}}
	for _, network := range []string{"10.0.0.0/7", "2000::/15", "::ffff:10.0.0.0/104", "64:ff9b::10.0.0.0/104", "::ffff:0:10.0.0.0/104", "203.0.113.7/24", "203.0.113.7", "", "invalid Prefix"} {
		wrong = append(wrong, entry(OfBan, "", network, ""))
	}
	for _, text := range []string{"", "x", "x0", "x-1", "xNaN", "x1e9", "x1001", "10", "10 1", "0 1/s", "allow", "x0.5x", "\x00"} {
		wrong = append(wrong, entry(OfLimit, "z", "", text))
	}
	long := strings.Repeat("x", longestNote+1)
	for _, span := range []Span{
		{Since: night, Until: night.Add(time.Second - 1)},
		{Since: night, Until: night.Add(Longest + 1)},
		{Since: night, Until: night.Add(time.Hour), By: long},
		{Since: night, Until: night.Add(time.Hour), Note: long},
	} {
		wrong = append(wrong, Entry{Name: Name{Kind: OfShadow}, Span: span})
	}
	for _, e := range wrong {
		check.That(t, e.Check() != nil, "%+v: got no error, want one", e)
	}
	for _, e := range []Entry{
		{Name: Name{Kind: OfShadow}, Span: Span{Since: night, Until: night.Add(time.Second), By: long[1:], Note: long[1:]}},
		{Name: Name{Kind: OfShadow}, Span: Span{Since: night, Until: night.Add(Longest)}},
		{Name: Name{OfLimit, "z", "k"}, Ended: true},
		entry(OfBan, "", "10.0.0.0/8", ""),
		entry(OfBan, "", "2000::/16", ""),
	} {
		check.NoError(t, e.Check(), "%+v", e)
	}
}
