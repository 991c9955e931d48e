package storetest

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

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
