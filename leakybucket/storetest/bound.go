package storetest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

func boundOneKey(tb testing.TB, open Open) {
	checkBound(tb, open, 1, [][]int{{0}})
}

func boundSeveralKeys(tb testing.TB, open Open) {
	checkBound(tb, open, 4, [][]int{{0}, {1}, {2}, {3}})
}

func boundTogether(tb testing.TB, open Open) {
	checkBound(tb, open, 3, [][]int{{0, 1}, {1}, {2, 1}, {0}, {1, 2, 0}, {2}})
}

// checkBound lets many callers take on the store's own clock for a while, and
// holds what became of it against the bound. takes lists which keys are taken
// together.
func checkBound(tb testing.TB, open Open, keys int, takes [][]int) {
	s := begin(tb, open, Need{})
	l := s.scarceLimit(keys)
	const workers = 16
	rounds, most := check.OrShort(5000, 300), 600*time.Millisecond // a store behind a network answers less often
	start := time.Now()
	var seen [workers][]history
	for w := range seen {
		seen[w] = make([]history, keys)
	}
	race(workers, 1, func(w, _ int) {
		rng := rand.New(rand.NewPCG(uint64(w), 11))
		for range rounds {
			which := takes[rng.IntN(len(takes))]
			all := make([]leakybucket.Charge, len(which))
			for i, key := range which {
				all[i] = charge(fmt.Sprint("k", key), l, 0.5+rng.Float64())
			}
			decisions := make([]leakybucket.Decision, len(all))
			call := time.Since(start)
			if call > most || !s.try(all, decisions) {
				return
			}
			back := time.Since(start)
			for i, key := range which {
				e := event{call, back, all[i].Cost, decisions[i]}
				seen[w][key].events = append(seen[w][key].events, e)
			}
			runtime.Gosched()
		}
	})
	for key := range keys {
		h := history{limit: l}
		for _, of := range seen {
			h.events = append(h.events, of[key].events...)
		}
		if err := h.check(); err != nil {
			s.Errorf("%d takes of key %d, capacity %v, leak %v/s: %v", len(h.events), key, l.Capacity, l.Leak, err)
		}
	}
}

// scarceLimit returns a limit under which some takes are admitted and most are
// not, however fast the store is: whether a clock or an order is right shows
// only at a bucket that is nearly full.
func (s *subject) scarceLimit(keys int) leakybucket.Limit {
	s.Helper()
	const takes = 200
	l := limit(1e3, 1)
	start := time.Now()
	for i := range takes {
		c := charge(fmt.Sprint("warm", i%keys), l, 1)
		if err := s.store.Take(context.Background(), charges(c), make([]leakybucket.Decision, 1)); err != nil {
			s.Fatalf("taking a charge: %v", err)
		}
	}
	rate := takes / time.Since(start).Seconds()
	// Far below one cost a microsecond, so that levels tell the order of pours.
	return limit(10, min(rate/float64(8*keys), 1e5))
}

// race lets workers run f round by round. They enter each round together, so
// that all of them meet at whatever a round touches first. f must not end the
// case, since the others would wait for it forever.
func race(workers, rounds int, f func(worker, round int)) {
	arrived := make([]sync.WaitGroup, rounds)
	for r := range arrived {
		arrived[r].Add(workers)
	}
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for r := range rounds {
				arrived[r].Done()
				arrived[r].Wait()
				f(w, r)
			}
		})
	}
	wg.Wait()
}

// freshKeys takes each of many new keys a hundred times at once. As good as
// nothing leaks meanwhile, so exactly the capacity is admitted.
func freshKeys(tb testing.TB, open Open) {
	s := begin(tb, open, Need{})
	const workers, takes, capacity = 10, 10, 10
	keys := check.OrShort(1000, 100)
	fresh := make([]leakybucket.Charge, keys)
	for i := range fresh {
		fresh[i] = charge(fmt.Sprint("k", i), limit(capacity, 1e-7), 1)
	}
	admitted := make([]atomic.Int64, keys)
	race(workers, keys, func(_, key int) {
		decisions := make([]leakybucket.Decision, 1)
		for range takes {
			if s.try(fresh[key:key+1], decisions) && decisions[0].Poured {
				admitted[key].Add(1)
			}
			runtime.Gosched()
		}
	})
	wrong, example := 0, 0
	for key := range admitted {
		if admitted[key].Load() != capacity {
			wrong, example = wrong+1, key
		}
	}
	if wrong > 0 {
		s.Errorf("admitted by a fresh key in %d concurrent takes: got other than %d on %d of %d keys (%d on key %d), want %[2]d",
			workers*takes, capacity, wrong, keys, admitted[example].Load(), example)
	}
}

// allOrNoneContended takes overlapping buckets in every order, while one of
// them runs full, and then with the next one that does. In the end each must
// hold what was poured into it, and no more.
func allOrNoneContended(tb testing.TB, open Open) {
	s := beginHeld(tb, open, Need{})
	const workers, scarcities, rounds = 8, 25, 20
	left := func(cost float64) leakybucket.Charge { return charge("left", limit(1e4, 1), cost) }
	right := func(cost float64) leakybucket.Charge { return charge("right", limit(1e4, 1), cost) }
	var kinds [scarcities][][]leakybucket.Charge
	buckets := charges(left(0), right(0), shadow(left(0)))
	for i := range kinds {
		scarce := func(cost float64) leakybucket.Charge { return charge(fmt.Sprint("scarce", i), limit(20, 1), cost) }
		kinds[i] = [][]leakybucket.Charge{ // in halves, so that their sums are exact
			charges(left(1), scarce(1)),
			charges(scarce(2), right(1)),
			charges(right(1), left(2), scarce(0.5)),
			charges(left(1), right(1.5)),
			charges(scarce(0.5), shadow(left(1)), left(0.5)),
		}
		buckets = append(buckets, scarce(0))
	}
	var sums [workers]map[string]float64
	for w := range sums {
		sums[w] = make(map[string]float64)
	}
	race(workers, scarcities*rounds, func(w, round int) {
		kind := kinds[round/rounds][(w+round)%len(kinds[0])]
		decisions := make([]leakybucket.Decision, len(kind))
		if !s.try(kind, decisions) {
			return
		}
		fits, pours := 0, 0
		for i, d := range decisions {
			if d.Fits {
				fits++
			}
			if d.Poured {
				pours++
				sums[w][bucketOf(kind[i])] += kind[i].Cost
			}
		}
		if pours != 0 && pours != len(kind) || (fits == len(kind)) != (pours == len(kind)) {
			s.Errorf("take over %d buckets: got %d that fit and %d poured, want all or none", len(kind), fits, pours)
		}
	})
	for _, c := range buckets {
		sum := 0.0
		for _, of := range sums {
			sum += of[bucketOf(c)]
		}
		got := s.level(c)
		if !near(c.Limit, got, sum) {
			s.Errorf("level of %s after all takes: got %v, want %v, the sum of what was admitted", bucketOf(c), got, sum)
		}
		if scarce := c.Limit.Capacity == 20; scarce && got != 20 {
			s.Errorf("level of %s after far too many takes: got %v, want it full at 20", bucketOf(c), got)
		}
	}
}

// bucketOf names the bucket of a charge among those of a case.
func bucketOf(c leakybucket.Charge) string {
	if c.Shadow {
		return "~" + c.Zone + "/" + c.Key
	}
	return c.Zone + "/" + c.Key
}

// boundSettled lets many callers reserve, and settle what they have reserved,
// on the store's own clock for a while. What is given back may be reserved
// again, and no more than that.
func boundSettled(tb testing.TB, open Open) {
	s := begin(tb, open, Need{})
	l := s.scarceLimit(2)
	slow := limit(l.Capacity, l.Leak/30) // little leaks before it is settled
	limits := []leakybucket.Limit{l, slow}
	var all [16]reserver
	start := time.Now()
	for w := range all {
		rng := rand.New(rand.NewPCG(uint64(w), 13))
		all[w] = reserver{subject: s, start: start, rng: rng, limits: limits, seen: make(map[string]history)}
	}
	rounds, most := check.OrShort(1500, 300), 400*time.Millisecond // a store behind a network answers less often
	race(len(all), 1, func(w, _ int) {
		r := &all[w]
		for range rounds {
			if time.Since(start) > most || !r.act() {
				return
			}
			runtime.Gosched()
		}
	})
	for i, l := range limits {
		key, h := fmt.Sprint("k", i), history{limit: l}
		for _, r := range all {
			h.events = append(h.events, r.seen[key].events...)
			h.settled = append(h.settled, r.seen[key].settled...)
		}
		if err := h.check(); err != nil {
			s.Errorf("%d takes and %d settlements of %s, capacity %v, leak %v/s: %v",
				len(h.events), len(h.settled), key, l.Capacity, l.Leak, err)
		}
	}
}

// reserver is a caller that takes and settles.
type reserver struct {
	*subject
	start  time.Time
	rng    *rand.Rand
	limits []leakybucket.Limit
	open   []leakybucket.Settlement // of what was taken, not yet settled
	seen   map[string]history       // by key
}

func (r *reserver) act() bool {
	if n := len(r.open); n > 0 && (n > 4 || r.rng.IntN(2) == 0) {
		return r.correct()
	}
	return r.reserve()
}

// reserve takes from one of the buckets, or from both.
func (r *reserver) reserve() bool {
	var all []leakybucket.Charge
	for _, i := range [][]int{{0}, {0}, {0}, {1}, {1, 0}}[r.rng.IntN(5)] {
		l := r.limits[i]
		all = append(all, inDebt(charge(fmt.Sprint("k", i), l, 0.5+r.rng.Float64()), l.Capacity))
	}
	decisions := make([]leakybucket.Decision, len(all))
	call := time.Since(r.start)
	if !r.try(all, decisions) {
		return false
	}
	back := time.Since(r.start)
	for i, d := range decisions {
		c := all[i]
		h := r.seen[c.Key]
		h.events = append(h.events, event{call, back, c.Cost, d})
		r.seen[c.Key] = h
		if d.Poured {
			r.open = append(r.open, leakybucket.Settlement{Charge: c, Was: d, Diff: r.diff(c.Cost), Cancel: r.rng.IntN(10) == 0})
		}
	}
	return true
}

// diff is rarely above 0, since what is settled upwards would hide it if
// somebody else's charge were lost, and not far below, so that there is always
// more to reserve than there is room for.
func (r *reserver) diff(cost float64) float64 {
	switch r.rng.IntN(20) {
	case 0:
		return 0.1 * r.rng.Float64()
	case 1:
		return -2 * cost
	case 2, 3, 4:
		return -cost
	}
	return -0.3 * cost * r.rng.Float64()
}

// correct settles one or two of what is open, in any order.
func (r *reserver) correct() bool {
	r.rng.Shuffle(len(r.open), func(i, j int) { r.open[i], r.open[j] = r.open[j], r.open[i] })
	n := min(len(r.open), 1+r.rng.IntN(2))
	now := r.open[:n]
	call := time.Since(r.start)
	if !r.trySettle(now...) {
		return false
	}
	back := time.Since(r.start)
	for _, s := range now {
		h := r.seen[s.Charge.Key]
		h.settled = append(h.settled, settled{call, back, s})
		r.seen[s.Charge.Key] = h
	}
	r.open = r.open[n:]
	return true
}

// event is one charge of a take, as its caller saw it.
type event struct {
	call, back time.Duration // when it was asked and answered, on the caller's clock
	cost       float64
	leakybucket.Decision
}

// settled is a settlement, as its caller saw it.
type settled struct {
	call, back time.Duration
	leakybucket.Settlement
}

// A history is all that happened to one bucket, its limit unchanged.
type history struct {
	limit   leakybucket.Limit
	events  []event
	settled []settled
}

// check reports whether the history is one that the contract allows.
func (h history) check() error {
	return errors.Join(h.checkOrder(), h.checkReplay(), h.checkWindows(), h.checkCallers())
}

// bound is what may be admitted at once: a capacity, what leaks while a clock
// in microseconds stands still, and the rounding of the sums made here.
func (h history) bound() float64 {
	return h.limit.Capacity*(1+1e-9) + h.limit.Leak*1e-6 + h.limit.Capacity*1e-6
}

// checkOrder reports a decision that lies before another which was answered
// before it was asked.
func (h history) checkOrder() error {
	calls := slices.Clone(h.events)
	slices.SortFunc(calls, func(a, b event) int { return cmp.Compare(a.call, b.call) })
	backs := slices.Clone(h.events)
	slices.SortFunc(backs, func(a, b event) int { return cmp.Compare(a.back, b.back) })
	latest, answered := leakybucket.Instant(math.MinInt64), 0
	for _, e := range calls {
		for ; backs[answered].back < e.call; answered++ {
			latest = max(latest, backs[answered].At)
		}
		if e.At < latest {
			return fmt.Errorf("got a decision %v before one that was answered before it was asked, want time to run forwards", latest.Sub(e.At))
		}
	}
	return nil
}

// checkReplay plays the decisions in the order of their instants, and reports
// one that is not what Limit.Take decides. A clock that was read outside the
// atomic step shows here, in levels that hold what was poured later. Nobody is
// told the instant of a settlement, so what was settled cannot be replayed.
func (h history) checkReplay() error {
	if len(h.settled) > 0 {
		return h.checkJudged(h.events)
	}
	events := slices.Clone(h.events)
	slices.SortFunc(events, func(a, b event) int {
		// At one instant levels only rise.
		return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.Level, b.Level))
	})
	state := leakybucket.State{}
	for len(events) > 0 {
		n := 1
		for n < len(events) && events[n].At == events[0].At {
			n++
		}
		next, err := h.replayInstant(state, events[:n])
		if err != nil {
			return err
		}
		state, events = next, events[n:]
	}
	return nil
}

// replayInstant replays what was decided at one instant. A refusal changes
// nothing, so it may stand before or after any pour.
func (h history) replayInstant(state leakybucket.State, events []event) (leakybucket.State, error) {
	levels := []float64{h.limit.Level(state, events[0].At)}
	for _, e := range events {
		if !e.Poured {
			continue
		}
		level := levels[len(levels)-1]
		if !near(h.limit, e.Level, level) {
			return state, fmt.Errorf("got cost %v poured at level %v at %d, want level %v by what was poured before", e.cost, e.Level, e.At, level)
		}
		state = leakybucket.State{Level: level + e.cost, At: e.At}
		levels = append(levels, state.Level)
	}
	for _, e := range events {
		if !e.Poured && !slices.ContainsFunc(levels, func(l float64) bool { return near(h.limit, l, e.Level) }) {
			return state, fmt.Errorf("got cost %v not poured at level %v at %d, want one of the levels %v by what was poured before", e.cost, e.Level, e.At, levels)
		}
	}
	return state, h.checkJudged(events)
}

// checkJudged reports a decision that does not follow from its level.
func (h history) checkJudged(events []event) error {
	for _, e := range events {
		_, want := h.limit.Take(leakybucket.State{Level: e.Level, At: e.At}, e.cost, e.At)
		onEdge := near(h.limit, e.Level+e.cost, h.limit.Capacity)
		if want.Fits != e.Fits && !onEdge || e.Poured && !e.Fits {
			return fmt.Errorf("cost %v at level %v: got fits %v and poured %v, want fits %v", e.cost, e.Level, e.Fits, e.Poured, want.Fits)
		}
	}
	return nil
}

// checkWindows looks at every window between two instants of the store's clock.
//
// With what was poured up to and including event j as P(j), the window from i
// to j holds too much if P(j) - leak*At(j) exceeds P(i-1) - leak*At(i) by more
// than the bound. The least of the latter so far is all that must be kept. What
// may have been given back in the window, all that began by At(j) less what
// ended before At(i), is taken off likewise.
func (h history) checkWindows() error {
	events := h.poured()
	slices.SortFunc(events, func(a, b event) int { return cmp.Compare(a.At, b.At) })
	backs := h.givenBack()
	begun := tallyOf(backs, func(g giveBack) leakybucket.Instant { return g.from })
	ended := tallyOf(backs, func(g giveBack) leakybucket.Instant { return g.to })
	sum, least, worst := 0.0, math.Inf(1), math.Inf(-1)
	for _, e := range events {
		leaked := h.limit.Leak * e.At.Sub(events[0].At).Seconds()
		least = min(least, sum-leaked-ended.before(e.At))
		sum += e.cost
		worst = max(worst, sum-leaked-begun.before(e.At+1)-least)
	}
	if worst > h.bound() {
		return fmt.Errorf("poured in some window of the store's clock: got %v more than leaked or was given back, want at most %v", worst, h.bound())
	}
	return nil
}

// checkCallers looks at every window of the callers' clock: what was asked and
// answered within it was poured within it. It needs no word of the store's.
//
// Windows begin where something was asked, and are gone through from the last
// to the first; a tree over the answers in their order knows the worst end.
func (h history) checkCallers() error {
	events := h.poured()
	slices.SortFunc(events, func(a, b event) int { return cmp.Compare(a.back, b.back) })
	byCall := make([]int, len(events))
	for i := range byCall {
		byCall[i] = i
	}
	slices.SortFunc(byCall, func(i, j int) int { return cmp.Compare(events[j].call, events[i].call) })
	backs := h.givenBack()
	begun := tallyOf(backs, func(g giveBack) time.Duration { return g.call })
	ended := tallyOf(backs, func(g giveBack) time.Duration { return g.back })
	ends := newSumTree(len(events))
	worst := math.Inf(-1)
	for _, i := range byCall {
		e := events[i]
		ends.add(i, e.cost, h.limit.Leak*e.back.Seconds()+begun.before(e.back+1))
		worst = max(worst, ends.worst()+h.limit.Leak*e.call.Seconds()+ended.before(e.call))
	}
	if worst > h.bound() {
		return fmt.Errorf("poured in some window of the callers' clock: got %v more than leaked or was given back, want at most %v", worst, h.bound())
	}
	return nil
}

func (h history) poured() []event {
	return slices.DeleteFunc(slices.Clone(h.events), func(e event) bool { return !e.Poured })
}

// sumTree holds costs in a fixed order, and knows the largest of the sums up to
// and including each, less what it is told to take off there.
type sumTree struct {
	sums, bests []float64 // node 1 is the root, node n has the children 2n and 2n+1
	leaves      int
}

func newSumTree(n int) *sumTree {
	leaves := 1
	for leaves < n {
		leaves *= 2
	}
	t := &sumTree{make([]float64, 2*leaves), make([]float64, 2*leaves), leaves}
	for i := range t.bests {
		t.bests[i] = math.Inf(-1) // nothing ends here yet
	}
	return t
}

func (t *sumTree) add(i int, cost, off float64) {
	n := t.leaves + i
	t.sums[n], t.bests[n] = cost, cost-off
	for n /= 2; n > 0; n /= 2 {
		left, right := 2*n, 2*n+1
		t.sums[n] = t.sums[left] + t.sums[right]
		t.bests[n] = max(t.bests[left], t.sums[left]+t.bests[right])
	}
}

func (t *sumTree) worst() float64 { return t.bests[1] }

// giveBack is what a settlement gave back at most, and between which instants
// it did.
type giveBack struct {
	most       float64
	from, to   leakybucket.Instant // on the store's clock
	call, back time.Duration       // on the callers'
}

// givenBack returns what was given back. When a settlement was made on the
// store's clock is known by the decisions that were answered before it was
// asked, and by those that were asked after it was answered.
func (h history) givenBack() []giveBack {
	if len(h.settled) == 0 {
		return nil
	}
	byBack := slices.SortedFunc(slices.Values(h.events), func(a, b event) int { return cmp.Compare(a.back, b.back) })
	latest := make([]leakybucket.Instant, len(byBack)+1) // of the first so many
	latest[0] = math.MinInt64
	for i, e := range byBack {
		latest[i+1] = max(latest[i], e.At)
	}
	byCall := slices.SortedFunc(slices.Values(h.events), func(a, b event) int { return cmp.Compare(a.call, b.call) })
	soonest := make([]leakybucket.Instant, len(byCall)+1) // from there on
	soonest[len(byCall)] = math.MaxInt64
	for i := len(byCall) - 1; i >= 0; i-- {
		soonest[i] = min(soonest[i+1], byCall[i].At)
	}
	var backs []giveBack
	for _, s := range h.settled {
		if s.Diff >= 0 && !s.Cancel || !s.Was.Poured {
			continue
		}
		before, _ := slices.BinarySearchFunc(byBack, s.call, func(e event, t time.Duration) int { return cmp.Compare(e.back, t) })
		after, _ := slices.BinarySearchFunc(byCall, s.back+1, func(e event, t time.Duration) int { return cmp.Compare(e.call, t) })
		g := giveBack{from: max(s.Was.At, latest[before]), to: soonest[after], call: s.call, back: s.back}
		g.most = max(0, min(-s.Diff, s.Charge.Cost)-h.limit.Leak*g.from.Sub(s.Was.At).Seconds())
		if s.Cancel { // what has leaked, too
			g.most = s.Charge.Cost
		}
		backs = append(backs, g)
	}
	return backs
}

// tally knows how much was given back before any time.
type tally[T ~int64] struct {
	times []T
	sums  []float64 // of the first so many
}

func tallyOf[T ~int64](backs []giveBack, when func(giveBack) T) tally[T] {
	sorted := slices.SortedFunc(slices.Values(backs), func(a, b giveBack) int { return cmp.Compare(when(a), when(b)) })
	t := tally[T]{sums: []float64{0}}
	for i, g := range sorted {
		t.times = append(t.times, when(g))
		t.sums = append(t.sums, t.sums[i]+g.most)
	}
	return t
}

func (t tally[T]) before(at T) float64 {
	n, _ := slices.BinarySearch(t.times, at)
	return t.sums[n]
}
