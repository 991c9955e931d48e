package storetest

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
)

// reference is a store that can be seen to be right: one lock, one map, and a
// look at everything when something must go. Its bugs are in mutants_test.go.
type reference struct {
	bugs       // none in the reference itself
	maxBuckets int

	mu        sync.Mutex
	clock     func() leakybucket.Instant
	buckets   map[name]*bucket
	swept     leakybucket.Instant
	evictions uint64
	registry  referenceRegistry
}

type name struct {
	zone, key string
	shadow    bool
}

type bucket struct {
	leakybucket.State
	forget leakybucket.Instant
}

func openReference(b bugs) Open {
	return func(_ testing.TB, need Need) (leakybucket.Store, func(leakybucket.Instant)) {
		start := time.Now()
		s := &reference{
			bugs:       b,
			maxBuckets: need.MaxBuckets,
			buckets:    make(map[name]*bucket),
			clock:      func() leakybucket.Instant { return epoch.Add(time.Since(start)) },
		}
		return s, s.setClock
	}
}

func (s *reference) setClock(t leakybucket.Instant) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clock = func() leakybucket.Instant { return t }
}

func (s *reference) Take(ctx context.Context, charges []leakybucket.Charge, decisions []leakybucket.Decision) error {
	t := taking{ctx, charges, decisions}
	if s.take != nil {
		return s.take(s, t)
	}
	return s.takeOnce(t)
}

// taking is what Take was asked.
type taking struct {
	ctx       context.Context
	charges   []leakybucket.Charge
	decisions []leakybucket.Decision
}

// takeOnce is all that Take has to do.
func (s *reference) takeOnce(t taking) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.decide(t, s.clock())
	return nil
}

func (s *reference) decide(t taking, now leakybucket.Instant) {
	s.write(s.judge(t, s.read(t.charges, now), now))
}

func (s *reference) read(charges []leakybucket.Charge, now leakybucket.Instant) []leakybucket.State {
	states := make([]leakybucket.State, len(charges))
	for i, c := range charges {
		if b, ok := s.buckets[s.name(c)]; ok {
			states[i] = b.State
		}
		if s.reread != nil {
			s.reread(c, &states[i], now)
		}
	}
	return states
}

// judging is what a reference store decides on, and what it has decided.
type judging struct {
	taking
	before, states []leakybucket.State
	now            leakybucket.Instant
}

func (s *reference) judge(t taking, states []leakybucket.State, now leakybucket.Instant) judging {
	j := judging{t, states, append([]leakybucket.State(nil), states...), now}
	store.TakeAll(t.charges, j.states, now, t.decisions)
	if s.rejudge != nil {
		s.rejudge(j)
	}
	return j
}

func (s *reference) write(j judging) {
	for i, c := range j.charges {
		b, kept := s.buckets[s.name(c)]
		if !kept {
			if j.states[i] == j.before[i] {
				continue
			}
			s.tidy(j.now)
			b = new(bucket)
			s.buckets[s.name(c)] = b
		}
		if j.decisions[i].Poured || j.states[i] != b.State {
			*b = bucket{j.states[i], s.forgets(c, j.states[i])}
		}
	}
}

func (s *reference) Settle(ctx context.Context, settlements []leakybucket.Settlement) error {
	if s.settle != nil {
		return s.settle(s, settling{ctx, settlements})
	}
	return s.settleEach(settling{ctx, settlements})
}

// settling is what Settle was asked.
type settling struct {
	ctx         context.Context
	settlements []leakybucket.Settlement
}

// settleEach is all that Settle has to do.
func (s *reference) settleEach(all settling) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, of := range all.settlements {
		s.writeBack(s.correct(of, s.clock()))
	}
	return nil
}

// correcting is what a reference store makes of a settlement.
type correcting struct {
	leakybucket.Settlement
	before, after bucket
	keep          bool // the bucket is there, or must be made
	now           leakybucket.Instant
}

func (s *reference) correct(of leakybucket.Settlement, now leakybucket.Instant) correcting {
	c := correcting{Settlement: of, keep: of.Creates(), now: now}
	if b, kept := s.buckets[s.name(of.Charge)]; kept {
		c.before, c.keep = *b, true
	}
	c.after.State = of.Apply(c.before.State, now)
	c.after.forget = s.forgets(of.Charge, c.after.State)
	if s.recorrect != nil {
		s.recorrect(&c)
	}
	return c
}

func (s *reference) writeBack(c correcting) {
	if !c.keep {
		return
	}
	b, kept := s.buckets[s.name(c.Charge)]
	if !kept {
		s.tidy(c.now)
		b = new(bucket)
		s.buckets[s.name(c.Charge)] = b
	}
	*b = c.after
}

// forgets returns when a bucket may be forgotten that is written now.
func (s *reference) forgets(c leakybucket.Charge, state leakybucket.State) leakybucket.Instant {
	if s.noted != nil {
		return s.noted(c, state)
	}
	return store.Expiry(&c, &state)
}

func (s *reference) name(c leakybucket.Charge) name {
	n := name{c.Zone, c.Key, c.Shadow}
	if s.rename != nil {
		s.rename(&n)
	}
	return n
}

func (s *reference) full() bool { return s.maxBuckets > 0 && len(s.buckets) >= s.maxBuckets }

// tidy forgets what may be forgotten, once a second or when the store is full,
// and then drops what would be empty soonest.
func (s *reference) tidy(now leakybucket.Instant) {
	if s.makeRoom != nil {
		s.makeRoom(s, now)
		return
	}
	if s.full() || now >= s.swept.Add(time.Second) {
		s.swept = now
		if s.sweep != nil {
			s.sweep(s, now)
		} else {
			s.forget(now)
		}
	}
	if s.full() {
		s.drop(func(a, b *bucket) bool { return a.forget < b.forget })
	}
}

func (s *reference) forget(now leakybucket.Instant) {
	for n, b := range s.buckets {
		if b.forget <= now {
			delete(s.buckets, n)
		}
	}
}

// drop drops the bucket that comes first.
func (s *reference) drop(before func(a, b *bucket) bool) {
	var first name
	var soonest *bucket
	for n, b := range s.buckets {
		if soonest == nil || before(b, soonest) {
			first, soonest = n, b
		}
	}
	delete(s.buckets, first)
	s.evictions++
}

func (s *reference) Reset(_ context.Context, zone, key string, shadow bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.name(leakybucket.Charge{Zone: zone, Key: key, Shadow: shadow})
	if s.reset != nil {
		return s.reset(s, n)
	}
	delete(s.buckets, n)
	return nil
}

// List pages through the keys in their order. The cursor is > and the last key.
func (s *reference) List(_ context.Context, of store.Filter, cursor string) (some []store.Entry, next string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n, state := range s.buckets {
		if n.zone == of.Zone && n.shadow == of.Shadow && strings.HasPrefix(n.key, of.Prefix) {
			some = append(some, store.Entry{Key: n.key, State: state.State, Now: s.clock()})
		}
	}
	slices.SortFunc(some, func(a, b store.Entry) int { return strings.Compare(a.Key, b.Key) })
	if s.list != nil {
		some = s.list(some)
	}
	if s.page != nil {
		return s.page(some, of.Scan, cursor)
	}
	return pageBehind(some, of.Scan, cursor)
}

func pageBehind(all []store.Entry, want int, cursor string) (some []store.Entry, next string, err error) {
	if cursor != "" && !strings.HasPrefix(cursor, ">") {
		return nil, "", store.ErrBadCursor
	}
	some = slices.DeleteFunc(all, func(k store.Entry) bool { return ">"+k.Key <= cursor })
	if len(some) > want {
		some = some[:want]
		next = ">" + some[want-1].Key
	}
	return some, next, nil
}

func (s *reference) Buckets() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	counts := make(map[string]int)
	for n := range s.buckets {
		counts[n.zone]++
	}
	return counts
}

func (s *reference) Evictions() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.evictions
}

// bugs are ways in which a reference store can be wrong: each, where it is set,
// stands in for what is right or is done after it.
type bugs struct {
	take      func(*reference, taking) error
	reread    func(leakybucket.Charge, *leakybucket.State, leakybucket.Instant)
	rejudge   func(judging)
	settle    func(*reference, settling) error
	recorrect func(*correcting)
	rename    func(*name)
	makeRoom  func(*reference, leakybucket.Instant)
	sweep     func(*reference, leakybucket.Instant)
	noted     func(leakybucket.Charge, leakybucket.State) leakybucket.Instant
	reset     func(*reference, name) error
	list      func([]store.Entry) []store.Entry
	mayPut    func(*referenceRegistry, store.Text) bool
	page      func(all []store.Entry, want int, cursor string) ([]store.Entry, string, error)

	keepsEnded, returnsAll, keepsMark bool
}

// A mutant is a store with a bug, and the case that must catch it.
type mutant struct {
	name, caughtBy string
	bugs
}

// eachCharge is a rejudge that goes through the charges.
func eachCharge(f func(j judging, i int, c leakybucket.Charge, d *leakybucket.Decision)) func(judging) {
	return func(j judging) {
		for i, c := range j.charges {
			f(j, i, c, &j.decisions[i])
		}
	}
}

// alsoPour is a rejudge that pours some of what was refused.
func alsoPour(which func(c leakybucket.Charge, level float64) bool) func(judging) {
	return eachCharge(func(j judging, i int, c leakybucket.Charge, d *leakybucket.Decision) {
		if !d.Fits && which(c, d.Level) {
			d.Fits, d.Poured = true, true
			j.states[i] = leakybucket.State{Level: d.Level + c.Cost, At: j.now}
		}
	})
}

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
