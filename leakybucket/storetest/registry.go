package storetest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
)

// A registrySubject is a store with a registry that a case examines.
type registrySubject struct {
	*subject
	registry store.Registry
	last     int64 // the mark of the last write
}

// registries begins a case of a store that is a registry.
func registries(tb testing.TB, open Open) registrySubject {
	s := beginHeld(tb, open, Need{})
	return registrySubject{subject: s, registry: has[store.Registry](s)}
}

// puts writes texts, and wants a new mark if that changes anything.
func (s *registrySubject) puts(changes bool, texts ...store.Text) {
	s.Helper()
	before, last, err := s.registry.PutTexts(context.Background(), texts)
	if err != nil || before != s.last || (last != before) != changes || changes && (last <= 0 || last >= store.MostNumber) {
		s.Fatalf("writing %+v: got marks %d and %d, error %v, want %d before, and another after: %v", texts, before, last, err, s.last, changes)
	}
	s.last = last
}

// has wants these texts, in the order of their names.
func (s *registrySubject) has(want ...store.Text) {
	s.Helper()
	all, err := s.registry.Texts(context.Background(), -1)
	slices.SortFunc(all.Texts, func(a, b store.Text) int { return strings.Compare(a.Name, b.Name) })
	if err != nil || all.Last != s.last || all.Count < len(want) || fmt.Sprint(all.Texts) != fmt.Sprint(want) {
		s.Fatalf("reading: got %+v, error %v, want the mark %d and %v", all, err, s.last, want)
	}
	if all, err = s.registry.Texts(context.Background(), s.last); err != nil || all.Last != s.last || len(all.Texts) > 0 {
		s.Fatalf("reading after the last write: got %+v, error %v, want nothing new", all, err)
	}
}

func text(name string, number int64, content string) store.Text {
	return store.Text{Name: name, Number: number, End: epoch.Add(time.Hour), Text: content}
}

// highestStands: of two texts of one name the one with the higher number is kept, in whatever
// order they come.
func highestStands(tb testing.TB, open Open) {
	s := registries(tb, open)
	s.has()
	bytes := "\x01 any \"text\" of\n bytes \xff \xc3\xbc"
	a, b := text("a", 5, bytes), text("b/\xff %", int64(epoch)+100, "2")
	s.puts(true, a, b)
	s.has(a, b)
	s.puts(false, text("a", 5, "equal"), text("a 2", 0, "no number"))
	s.puts(false, text("b/\xff %", int64(epoch)+99, "lower"))
	s.has(a, b)
	a = text("a", 6, "higher")
	s.puts(true, text("b/\xff %", int64(epoch)+99, "lower"), a)
	s.has(a, b)
}

// textsEnd: what has ended is neither returned nor written.
func textsEnd(tb testing.TB, open Open) {
	s := registries(tb, open)
	brief, long := text("a", 1, "brief"), text("b", 1, "long")
	brief.End = epoch.Add(time.Minute)
	s.puts(true, brief, long)
	s.has(brief, long)
	s.at(time.Minute)
	s.has(long)
	s.puts(false, brief)
	s.has(long)
	if all, err := s.registry.Texts(context.Background(), -1); err != nil || all.Count != 1 {
		s.Fatalf("reading after an end: got %+v, error %v, want a count of 1", all, err)
	}
}

// manyTexts: no more are returned than a process can use, and it learns of the others.
func manyTexts(tb testing.TB, open Open) {
	s := registries(tb, open)
	const more = 500
	var all []store.Text
	for i := range store.MostTexts + more {
		all = append(all, text(fmt.Sprint(i), int64(i+1), strings.Repeat("x", 40)))
	}
	long := text("long", 1, strings.Repeat("x", 2*store.LongestText))
	last := int64(0)
	for some := range slices.Chunk(append(all, long), 1000) {
		var err error
		if _, last, err = s.registry.PutTexts(context.Background(), some); err != nil {
			s.Fatalf("writing %d texts: got error %v, want none", len(some), err)
		}
	}
	got, err := s.registry.Texts(context.Background(), -1)
	if err != nil || got.Last != last || got.Count != len(all)+1 || len(got.Texts) > store.MostTexts || len(got.Texts) < store.MostTexts-1 {
		s.Fatalf("reading: got %d texts of %d, last write %d, error %v, want %d of %d", len(got.Texts), got.Count, got.Last, err, store.MostTexts, len(all)+1)
	}
	for _, t := range got.Texts {
		if t.Name == long.Name && (t.Number != 0 || len(t.Text) > store.LongestText) {
			s.Errorf("a text of %d bytes: got one of %d with number %d, want number 0", len(long.Text), len(t.Text), t.Number)
		}
	}
}

// textsContended: what several write at once is all there, each write has its mark, and the one
// before it is that of another.
func textsContended(tb testing.TB, open Open) {
	s := registries(tb, open)
	const writers, rounds = 6, 20
	var mu sync.Mutex
	next := make(map[int64]int64) // marks of writes, by the one before
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			for i := range rounds {
				before, last, err := s.registry.PutTexts(context.Background(), []store.Text{
					text(fmt.Sprint(w), int64(i+1), "own"), text("shared", int64(i*writers+w+1), fmt.Sprint(w)),
				})
				mu.Lock()
				if _, twice := next[before]; err != nil || twice || last == before {
					s.Errorf("contended write: got marks %d and %d, error %v, want each after another", before, last, err)
				}
				next[before] = last
				mu.Unlock()
			}
		})
	}
	all.Wait()
	got, err := s.registry.Texts(context.Background(), -1)
	if err != nil || len(got.Texts) != writers+1 {
		s.Fatalf("reading: got %+v, error %v, want %d texts", got, err, writers+1)
	}
	for _, t := range got.Texts {
		if want := int64(rounds); t.Name != "shared" && t.Number != want || t.Name == "shared" && t.Number != writers*want {
			s.Errorf("got %+v, want the highest number", t)
		}
	}
	last := int64(0)
	for range writers * rounds {
		last = next[last]
	}
	if last != got.Last {
		s.Errorf("got writes %v, want a chain from 0 to %d", next, got.Last)
	}
}
