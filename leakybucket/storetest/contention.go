package storetest

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// race lets workers run f round by round. They enter each round together, so
// that all of them meet at whatever a round touches first. f must not end the
// case, since the others would wait for it forever.
func race(workers, rounds int, f func(worker, round int)) {
	var arrived atomic.Int64
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for r := range rounds {
				arrived.Add(1)
				for arrived.Load() < int64(workers*(r+1)) {
					runtime.Gosched()
				}
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
	keys := 1000
	if testing.Short() {
		keys = 100
	}
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
