package storetest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// lists begins a case of a store that goes through its buckets, if it does. The
// result of list says what is kept of each.
func lists(tb testing.TB, open Open) (*subject, func(zone, prefix string, shadow bool) map[string]leakybucket.Kept) {
	s := beginHeld(tb, open, Need{})
	lister, ok := s.store.(leakybucket.Lister)
	if !ok {
		s.Log("not examined: the store is no leakybucket.Lister")
		return s, nil
	}
	return s, func(zone, prefix string, shadow bool) map[string]leakybucket.Kept {
		s.Helper()
		found := make(map[string]leakybucket.Kept)
		err := lister.List(context.Background(), zone, prefix, shadow, func(k leakybucket.Kept) bool {
			found[k.Key] = k
			return true
		})
		if err != nil {
			s.Fatalf("listing zone %q: got error %v, want none", zone, err)
		}
		return found
	}
}

// listsZone: the keys with the prefix, in this zone and this kind of it alone, with
// level, block and the time. Patterns of a store mean nothing in a prefix.
func listsZone(tb testing.TB, open Open) {
	s, list := lists(tb, open)
	if list == nil {
		return
	}
	for _, key := range []string{"a/1", "a/2", "a", "b", "a*", "a[1]", "a?", "A", "a\\"} {
		s.pours(guarded(key), 0)
	}
	elsewhere := guarded("a/9")
	elsewhere.Zone += "z"
	s.pours(elsewhere, 0)
	s.pours(shadow(guarded("a/3")), 0)
	blocked := guarded("blocked")
	s.fill(blocked)
	s.begins(blocked, 10, time.Minute)

	zone := blocked.Zone
	for _, want := range []struct {
		prefix string
		shadow bool
		keys   []string
	}{
		{"a/", false, []string{"a/1", "a/2"}},
		{"a*", false, []string{"a*"}},
		{"a[", false, []string{"a[1]"}},
		{"a\\", false, []string{"a\\"}},
		{"", true, []string{"a/3"}},
		{"nothing", false, nil},
	} {
		if got := slices.Sorted(maps.Keys(list(zone, want.prefix, want.shadow))); !slices.Equal(got, want.keys) {
			s.Errorf("prefix %q, shadow %v: got %q, want %q", want.prefix, want.shadow, got, want.keys)
		}
	}
	if got := len(list(zone, "", false)); got != 10 {
		s.Errorf("the zone: got %d buckets, want 10", got)
	}
	s.at(2 * time.Second)
	kept := list(zone, "blocked", false)["blocked"]
	if level := blocked.Limit.Level(kept.State, kept.Now); level != 8 || kept.Now != s.now || kept.State.BlockedUntil != epoch.Add(time.Minute) {
		s.Errorf("a blocked bucket: got a level of %v at %v, blocked until %v, want 8 at %v until %v",
			level, kept.Now, kept.State.BlockedUntil, s.now, epoch.Add(time.Minute))
	}
}

// listsMany: none is missed, and the caller may stop.
func listsMany(tb testing.TB, open Open) {
	s, list := lists(tb, open)
	if list == nil {
		return
	}
	const many, atOnce = 2500, 100
	for first := 0; first < many; first += atOnce {
		var some []leakybucket.Charge
		for i := range atOnce {
			some = append(some, charge(fmt.Sprintf("%04d", first+i), limit(10, 1), 1))
		}
		s.decide(some)
	}
	zone := guarded("").Zone
	if got := len(list(zone, "", false)); got != many {
		s.Errorf("got %d buckets, want %d", got, many)
	}
	if got := len(list(zone, "12", false)); got != 100 {
		s.Errorf("prefix 12: got %d buckets, want 100", got)
	}
	n := 0
	err := s.store.(leakybucket.Lister).List(context.Background(), zone, "", false, func(leakybucket.Kept) bool {
		n++
		return n < 3
	})
	if n != 3 || err != nil {
		s.Errorf("stopped at the third: got %d buckets and error %v, want 3 and none", n, err)
	}
}
