package storetest

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

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
