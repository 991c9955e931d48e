package expiring

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

func TestAFullTableTakesNewEntriesOnceOldOnesAreOver(t *testing.T) {
	const most = 2000
	m, now := New[int, int](most), time.Now()
	for i := range most {
		m.Put(i, i, now.Add(time.Minute), now)
	}
	check.That(t, !m.Put(most, 0, now.Add(time.Hour), now), "a table full of live entries took one more")
	check.That(t, m.Put(0, 7, now.Add(time.Hour), now), "a full table refused a new value for an old key")
	now = now.Add(2 * time.Minute)
	check.That(t, m.Put(most, 0, now.Add(time.Hour), now), "a table whose entries are over took no new one")
	for i := range most / 8 {
		m.Put(most, i, now.Add(time.Hour), now)
	}
	check.Equal(t, len(m.entries), 2, "entries after as many changes as remove the others")
}

func TestUpdatesAndDeletionsAreOneStepEach(t *testing.T) {
	m, now := New[string, int](10), time.Now()
	count := func(v int) (int, time.Time) { return v + 1, now.Add(time.Minute) }
	m.Update("a", now, count)
	m.Update("a", now, count)
	v, found := m.Get("a", now)
	check.That(t, v == 2 && found && m.Delete("a") && !m.Delete("a") && len(m.entries) == 0, "got %d, %v, want 2, true and, deleted once, an empty table", v, found)
}

func TestAGroupHasItsPart(t *testing.T) {
	const most, part = 50, 7
	s, now := NewShares[int](most, part, func(v int) int { return v % 10 }), time.Now()
	random := rand.New(rand.NewPCG(1, 2))
	until := make(map[int]time.Time)
	for range 20_000 {
		now = now.Add(time.Duration(random.IntN(100)) * time.Millisecond)
		k := random.IntN(300)
		live, ofGroup := 0, 0
		for other, end := range until {
			if end.After(now) {
				live++
			}
			if end.After(now) && other%10 == k%10 {
				ofGroup++
			}
		}
		_, known := s.Get(k, now)
		kept := s.Put(k, k, now.Add(2*time.Second), now)
		want := known || live < most && ofGroup < part
		check.Assume(t, kept == want, "got it kept: %v, want %v with %d entries, %d of its group", kept, want, live, ofGroup)
		if kept {
			until[k] = now.Add(2 * time.Second)
		}
		for k, end := range until {
			_, found := s.Get(k, now)
			check.Assume(t, found == end.After(now), "got entry %d found %v, which ends in %v", k, found, end.Sub(now))
		}
	}
}
