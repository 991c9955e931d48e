package admission

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/clock"
)

// A request is what a Grant and a Simulation have in common: the claims of one request to
// slots, and for how long it has waited.
type request struct {
	outer  *Grant // of the handler around
	clock  clock.Clock
	result Result

	mu       sync.Mutex // once the request is admitted; locked before that of a zone
	steps    []step
	unserved bool    // it is refused, or its client has left: slots were held in vain
	room     [1]step // mostly enough
}

// A step is what a request has to do in one zone.
type step struct {
	Entry
	index int    // of the entry
	slot  *claim // to a slot; nil before it is asked for, and after it is given back

	until time.Time // it waits for the slot; zero before

	virtual *virtualSlot // of a simulated request that takes turns, once it has begun
}

// A Grant is an admitted request, and holds its slots.
type Grant struct{ request }

// NotServed says that a handler within refuses the request. Its slots stay held until
// they are released, as do those of the handlers around. Then what its turns were charged
// is refunded, and the time counts in no mean. A nil Grant has none.
func (g *Grant) NotServed() {
	for ; g != nil; g = g.outer {
		g.mu.Lock()
		g.unserved = true
		g.mu.Unlock()
	}
}

// Holds reports whether the request holds a slot of a zone. A nil Grant holds none.
func (g *Grant) Holds(zone *Zone) bool {
	if g == nil {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.ContainsFunc(g.steps, func(s step) bool { return s.Zone == zone && s.slot != nil })
}

// Release gives the slots back. It may be called early, any number of times and
// by any goroutine; a nil Grant has none.
func (g *Grant) Release() { g.release(func(*step) bool { return true }) }

// ReleaseTurns gives the slots back for which requests take turns. Otherwise it is like
// Release.
func (g *Grant) ReleaseTurns() { g.release(func(s *step) bool { return s.Turn != nil }) }

func (g *Grant) release(which func(*step) bool) {
	if g != nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.giveBack(which)
	}
}

// setSteps sets the steps of entries, in the order in which slots are taken, which is the
// same for all requests. All their zones, of which there is at least one, have one clock.
func (r *request) setSteps(entries []Entry) {
	r.steps = slices.Grow(r.room[:0], len(entries))[:len(entries)]
	for i := range entries {
		r.steps[i].Entry, r.steps[i].index, r.steps[i].Waited = entries[i], i, 0
	}
	if len(r.steps) > 1 {
		slices.SortStableFunc(r.steps, byName)
	}
	r.clock = r.steps[0].Zone.Clock
}

// byName is the order in which slots are taken.
func byName(a, b step) int { return cmp.Compare(a.Zone.Name, b.Zone.Name) }

func (r *request) now() time.Time { return clock.Now(r.clock) }

// longest returns the step with the longest delay.
func (r *request) longest() *step {
	longest := &r.steps[0]
	for i := range r.steps {
		if r.steps[i].Delay > longest.Delay {
			longest = &r.steps[i]
		}
	}
	return longest
}

// early returns for how long the request must wait before it takes its turn.
func (e *Entry) early() time.Duration {
	if e.NotBefore.IsZero() {
		return 0
	}
	return e.NotBefore.Sub(e.Zone.Now())
}

// take takes the slot of a step, if it has one. If the request has to wait, take returns its
// claim; sleeper is nil for enforced requests.
func (r *request) take(i int, sleeper sleeper) (Why, *claim) {
	s := &r.steps[i]
	if s.InFlight == 0 {
		return Admitted, nil
	}
	r.result.Index = s.index
	return s.Zone.arrive(s, r.result.Waited > 0, sleeper)
}

// waited notes that a wait is over, and how long it was.
func (r *request) waited(s *step, began time.Time) {
	took := r.now().Sub(began)
	s.Waited += took
	r.result.Waited += took
	r.result.Index = s.index
}

// yield gives up the slots of outer requests whose zones come later, by name, than that of
// the step in which the request waits, and has it take them again after that. So each
// request that waits holds only slots of zones that come earlier, and no two wait for each
// other.
func (r *request) yield(i int) {
	s := r.steps[i]
	for outer := r.outer; outer != nil; outer = outer.outer {
		outer.mu.Lock()
		for j := range outer.steps {
			if o := &outer.steps[j]; o.slot != nil && o.Zone.Name > s.Zone.Name {
				o.Zone.yield(o.slot)
				again := *o
				again.Waited, again.index, again.until = 0, s.index, s.until
				r.steps, o.slot = append(r.steps, again), nil
			}
		}
		outer.mu.Unlock()
	}
	slices.SortStableFunc(r.steps[i+1:], byName)
}

// giveBack gives back the slots of some steps. The caller holds the lock.
func (r *request) giveBack(which func(*step) bool) {
	for i := range r.steps {
		if s := &r.steps[i]; s.slot != nil && which(s) {
			s.Zone.release(s.slot, !r.unserved)
			s.slot = nil
		}
	}
}
