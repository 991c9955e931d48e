package expiring

import (
	"math/rand/v2"
	"testing"
	"time"
)

// put keeps a value until its end, and reports whether there was room.
func put(s *Shares[int, string, int], k int, group string, v int, until, now time.Time) bool {
	return s.Update(k, group, now, func(int, bool) (int, time.Time) { return v, until })
}

func TestWhatEndsFirstGivesWay(t *testing.T) {
	s, now := NewShares[int, string, int](4, 2), time.Now()
	for _, step := range []struct {
		name    string
		key     int
		group   string
		lasts   time.Duration
		room    bool
		without int // the key that gave way; 0 for none
	}{
		{"the first", 1, "a", 9 * time.Second, true, 0},
		{"another of its group", 2, "a", 5 * time.Second, true, 0},
		{"a third takes the place of the group's first to end", 3, "a", 7 * time.Second, true, 2},
		{"another group", 4, "b", 4 * time.Second, true, 0},
		{"the last place", 5, "b", 8 * time.Second, true, 0},
		{"the full table takes the place of the first of all to end", 6, "c", time.Second, false, 4},
		{"a known key stays", 6, "b", 9 * time.Second, true, 0},
		{"and keeps its group, so the other one has room for one", 7, "b", 9 * time.Second, false, 3},
	} {
		if got := put(s, step.key, step.group, step.key, now.Add(step.lasts), now); got != step.room {
			t.Errorf("%s: got room %v, want %v", step.name, got, step.room)
		}
		if v, found := s.Get(step.key, now); !found || v != step.key {
			t.Errorf("%s: got %v, %v, want it kept", step.name, v, found)
		}
		if _, found := s.Get(step.without, now); found {
			t.Errorf("%s: got %d kept, want it to give way", step.name, step.without)
		}
	}
}

func TestSharesNeverExceedTheirBoundsAndForget(t *testing.T) {
	const most, part = 50, 7
	s, now := NewShares[int, string, int](most, part), time.Now()
	random := rand.New(rand.NewPCG(1, 2))
	until := make(map[int]time.Time)
	for range 20_000 {
		now = now.Add(time.Duration(random.IntN(100)) * time.Millisecond)
		k := random.IntN(300)
		until[k] = now.Add(time.Duration(1+random.IntN(5000)) * time.Millisecond)
		put(s, k, string(rune('a'+k%15)), k, until[k], now)
		if s.Len() > most || len(s.all.list) != len(s.entries) {
			t.Fatalf("got %d entries and %d in order, want at most %d", s.Len(), len(s.all.list), most)
		}
		for name, g := range s.groups {
			if n := len(g.list); n == 0 || n > part {
				t.Fatalf("got %d entries of group %s, want 1 to %d", n, name, part)
			}
		}
		for _, k := range []int{k, random.IntN(300)} {
			if _, found := s.Get(k, now); found && !until[k].After(now) {
				t.Fatal("got an entry after its end")
			}
		}
	}
	now = now.Add(time.Minute)
	put(s, 1, "a", 1, now.Add(time.Second), now)
	if s.Len() != 1 || len(s.groups) != 1 {
		t.Errorf("got %d entries and %d groups, want all forgotten but one", s.Len(), len(s.groups))
	}
}
