package expiring

import (
	"math/rand/v2"
	"testing"
	"time"
)

type grouped struct {
	of    int
	group string
}

func newShares(most, part int) *Table[int, grouped, string] {
	return NewShares[int](most, part, func(v grouped) string { return v.group })
}

func TestWhatEndsFirstGivesWay(t *testing.T) {
	s, now := newShares(4, 2), time.Now()
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
		if got := s.Put(step.key, grouped{step.key, step.group}, now.Add(step.lasts), now); got != step.room {
			t.Errorf("%s: got room %v, want %v", step.name, got, step.room)
		}
		if v, found := s.Get(step.key, now); !found || v.of != step.key {
			t.Errorf("%s: got %v, %v, want it kept", step.name, v, found)
		}
		if _, found := s.Get(step.without, now); found {
			t.Errorf("%s: got %d kept, want it to give way", step.name, step.without)
		}
	}
}

func TestSharesNeverExceedTheirBoundsAndForget(t *testing.T) {
	const most, part = 50, 7
	s, now := newShares(most, part), time.Now()
	random := rand.New(rand.NewPCG(1, 2))
	until := make(map[int]time.Time)
	for range 20_000 {
		now = now.Add(time.Duration(random.IntN(100)) * time.Millisecond)
		k := random.IntN(300)
		until[k] = now.Add(time.Duration(1+random.IntN(5000)) * time.Millisecond)
		s.Put(k, grouped{k, string(rune('a' + k%15))}, until[k], now)
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
	for range most/forgotten + 1 {
		s.Put(1, grouped{1, "a"}, now.Add(time.Second), now)
	}
	if s.Len() != 1 || len(s.groups) != 1 {
		t.Errorf("got %d entries and %d groups, want all forgotten but one", s.Len(), len(s.groups))
	}
}
