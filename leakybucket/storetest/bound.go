package storetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
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
	rounds, most := 5000, 600*time.Millisecond // a store behind a network answers less often
	if testing.Short() {
		rounds = 300
	}
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
