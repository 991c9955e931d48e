package storetest

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

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
	rounds, most := 1500, 400*time.Millisecond // a store behind a network answers less often
	if testing.Short() {
		rounds = 300
	}
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

// reserver is one who takes and settles.
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
