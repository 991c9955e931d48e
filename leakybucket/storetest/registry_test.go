package storetest

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
)

// A referenceRegistry is the registry of the reference.
type referenceRegistry struct {
	texts map[string]store.Text
	last  int64
}

func (s *reference) Texts(_ context.Context, seen int64) (all store.Texts, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &s.registry
	if all.Last = r.last; seen == r.last {
		return all, nil
	}
	now := s.clock()
	maps.DeleteFunc(r.texts, func(_ string, t store.Text) bool { return t.End <= now && !s.keepsEnded })
	for t := range maps.Values(r.texts) {
		if len(t.Name)+len(t.Text) > store.LongestText {
			t.Number, t.Text = 0, ""
		}
		all.Texts = append(all.Texts, t)
	}
	all.Count = len(all.Texts)
	if !s.returnsAll {
		all.Texts = all.Texts[:min(all.Count, store.MostTexts)]
	}
	return all, nil
}

func (s *reference) PutTexts(_ context.Context, texts []store.Text) (before, last int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, now := &s.registry, s.clock()
	if r.texts == nil {
		r.texts = make(map[string]store.Text)
	}
	before = r.last
	for _, t := range slices.Clone(texts) {
		may := t.Number > r.texts[t.Name].Number && t.End > now
		if s.mayPut != nil {
			may = s.mayPut(r, t)
		}
		if !may {
			continue
		}
		r.texts[t.Name] = t
		if r.last = 1 + rand.Int64N(store.MostNumber-1); s.keepsMark {
			r.last = 1
		}
	}
	return before, r.last, nil
}

var registryMutants = []mutant{
	{"lets the last write stand", "texts by their numbers", bugs{mayPut: func(*referenceRegistry, store.Text) bool { return true }}},
	{"lets an equal number stand", "texts by their numbers", bugs{mayPut: func(r *referenceRegistry, t store.Text) bool { return t.Number >= r.texts[t.Name].Number }}},
	{"has one mark for all writes", "texts by their numbers", bugs{keepsMark: true}},
	{"keeps texts for ever", "texts end", bugs{keepsEnded: true}},
	{"writes what has ended", "texts end", bugs{mayPut: func(r *referenceRegistry, t store.Text) bool { return t.Number > r.texts[t.Name].Number }}},
	{"returns all texts", "many texts", bugs{returnsAll: true}},
	{"lets the lower number stand at times", "texts under contention", bugs{mayPut: func(r *referenceRegistry, t store.Text) bool {
		return t.Name != "shared" && t.Number > r.texts[t.Name].Number
	}}},
}
