package storetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
)

// lists begins a case of a store that goes through its buckets. The result of list says what is
// kept of each.
func lists(tb testing.TB, open Open) (*subject, func(zone, prefix string, shadow bool) map[string]store.Entry) {
	s := beginHeld(tb, open, Need{})
	lister := has[store.Lister](s)
	return s, func(zone, prefix string, shadow bool) map[string]store.Entry {
		s.Helper()
		found := make(map[string]store.Entry)
		of := store.Filter{Zone: zone, Prefix: prefix, Shadow: shadow, Scan: 1000}
		for k, err := range store.ListAll(context.Background(), lister, of) {
			if err != nil {
				s.Fatalf("listing zone %q: got error %v, want none", zone, err)
			}
			found[k.Key] = k
		}
		return found
	}
}

// listsZone: the keys with the prefix, in this zone and this kind of it alone, with
// level, block and the time. Patterns of a store mean nothing in a prefix.
func listsZone(tb testing.TB, open Open) {
	s, list := lists(tb, open)
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

// listsMany: none is missed.
func listsMany(tb testing.TB, open Open) {
	s, list := lists(tb, open)
	const many = 2500
	s.poursMany("", many)
	zone := guarded("").Zone
	if got := len(list(zone, "", false)); got != many {
		s.Errorf("got %d buckets, want %d", got, many)
	}
	if got := len(list(zone, "12", false)); got != 100 {
		s.Errorf("prefix 12: got %d buckets, want 100", got)
	}
}

// poursMany pours into buckets whose keys are a number behind a prefix.
func (s *subject) poursMany(prefix string, many int) {
	s.Helper()
	for first := 0; first < many; first += 100 {
		var some []leakybucket.Charge
		for i := first; i < min(first+100, many); i++ {
			some = append(some, charge(fmt.Sprintf("%s%04d", prefix, i), limit(10, 1), 1))
		}
		s.decide(some)
	}
}

// listsInPages: what is kept from the first page to the last is in one of them, though
// buckets come and go between them, so that a store has to move those that stay.
func listsInPages(tb testing.TB, open Open) {
	s := beginHeld(tb, open, Need{})
	lister := has[store.Lister](s)
	const stay, leave, want = 300, 300, 40
	s.poursMany("m", stay)
	s.poursMany("a", leave)
	resetter, resets := s.store.(store.Resetter)
	of := store.Filter{Zone: guarded("").Zone, Scan: want}
	listed, cursor, pages := make(map[string]bool), "", 0
	for ; pages == 0 || cursor != ""; pages++ {
		some, next, err := lister.List(context.Background(), of, cursor)
		if err != nil {
			s.Fatalf("page %d: got error %v, want none", pages, err)
		}
		if len(some) > 5*want {
			s.Errorf("page %d: got %d buckets, want about %d", pages, len(some), want)
		}
		for _, kept := range some {
			listed[kept.Key] = true
		}
		if cursor = next; pages == 10_000 { // which pass by many buckets of others
			s.Fatalf("got no end after %d pages", pages)
		}
		switch pages {
		case 1: // fewer before the place, in the order of keys
			for i := 0; resets && i < leave; i++ {
				if err := resetter.Reset(context.Background(), of.Zone, fmt.Sprintf("a%04d", i), false); err != nil {
					s.Fatalf("resetting a bucket: got error %v, want none", err)
				}
			}
		case 3:
			s.poursMany("z", 900)
		}
	}
	for i := range stay {
		if key := fmt.Sprintf("m%04d", i); !listed[key] {
			s.Errorf("%s was kept all the while: got it in none of %d pages", key, pages)
		}
	}
}

// refusesCursors: a listing does not begin anew unasked.
func refusesCursors(tb testing.TB, open Open) {
	s := beginHeld(tb, open, Need{})
	lister := has[store.Lister](s)
	for _, cursor := range []string{"no cursor", "-1", "0", "%00", "'"} {
		_, _, err := lister.List(context.Background(), store.Filter{Zone: "z", Scan: 10}, cursor)
		if !errors.Is(err, store.ErrBadCursor) {
			s.Errorf("cursor %q: got error %v, want one that wraps ErrBadCursor", cursor, err)
		}
	}
}
