package admission

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/clock"
)

// A Gate admits the requests of one config. The zero value is ready for use.
type Gate struct {
	// Exiting is closed when the process is about to end. From then on no request
	// waits. If nil, the process never ends.
	Exiting <-chan struct{}

	// Waived, if not nil, returns a channel that is closed when a request of these zones
	// need not wait any longer. It is called for requests that have to wait, and done when
	// they do not any more.
	Waived func(zones []string) (waived <-chan struct{}, done func())
}

// Admit waits until the request may be served: until the longest of its delays is over,
// counted from since, then for a slot in each zone that limits them, in the order of the
// zones' names. If it admits the request, the caller must call Release on the Grant;
// otherwise the Grant is nil and no slot is held. Admit keeps no reference to entries.
// Since is the time of the call; it may be zero if no entry has a delay.
//
// If the request passes several handlers, those around hold their slots while it waits for
// others. Requests that take the same zones in different orders may so wait for each other,
// until MaxWait is over.
//
// A request may not be ready for its slots when its delay is over. Admit calls ready then, which
// says how the admission ends if not with slots, and the index of the entry for which it does,
// or -1. If nil, the request is ready.
func (g *Gate) Admit(ctx context.Context, since time.Time, entries []Entry, ready func() (Why, int)) (*Grant, Result) {
	grant := new(Grant)
	r := &grant.request
	r.came = since
	r.setSteps(entries)
	why, waited := g.admit(ctx, r, since, ready)
	if why == Admitted && waited && ctx.Err() != nil { // both at once
		why = Left
	}
	for i := range r.steps {
		entries[r.steps[i].index].Waited = r.steps[i].Waited
	}
	if r.result.Why = why; why == Admitted {
		return grant, r.result
	}
	grant.unserved = true
	grant.Release()
	return nil, r.result
}

// admit takes a request through all that it has to wait for. It reports whether it had to.
func (g *Gate) admit(ctx context.Context, r *request, since time.Time, ready func() (Why, int)) (why Why, waited bool) {
	for i := range r.steps {
		s := &r.steps[i]
		early := s.Early - r.result.Waited // the times run at once
		if early <= 0 {
			continue
		}
		if why, waited = g.pause(ctx, r, s, early, cmp.Or(s.Turn.Keys[1], s.Turn.Keys[0])), true; why != Admitted {
			return why, true
		}
	}
	if s := r.longest(); s.Delay > 0 {
		if why, waited = g.pause(ctx, r, s, since.Add(s.Delay).Sub(r.now()), ""), true; why != Admitted {
			return why, true
		}
	}
	if ready != nil {
		if why, r.result.Index = ready(); why != Admitted {
			return why, true
		}
		r.came = r.now()
	}
	for i := range r.steps {
		why, c := r.take(i, nil)
		if c != nil {
			waited = true
			began := r.now()
			if why = g.wait(ctx, r, c.done); why != Admitted {
				r.steps[i].Zone.stop(c, why)
			}
			why = c.why
			r.waited(&r.steps[i], began)
		}
		if why != Admitted {
			return why, waited
		}
	}
	return Admitted, waited
}

// pause lets a request wait for so long, in a place of the zone. The key is that of one that
// has come too early for its turn, and empty for delays.
func (g *Gate) pause(ctx context.Context, r *request, s *step, d time.Duration, key string) Why {
	r.result.Index = s.index
	switch {
	case key != "" && d > s.MaxWait:
		return TooLong
	case !s.Zone.enter(&s.Entry, key):
		return QueueFull
	}
	defer s.Zone.leave(key)
	defer r.waited(s, r.now())
	done := make(chan struct{})
	defer clock.AfterFunc(r.clock, d, func() { clock.Close(r.clock, done) }).Stop()
	return g.wait(ctx, r, done)
}

// wait waits until done is closed, or the client leaves, the process is about to end or
// the waits are waived.
func (g *Gate) wait(ctx context.Context, r *request, done <-chan struct{}) Why {
	if c := r.clock; c != nil {
		c.Wait(done)
		return Admitted
	}
	var waived <-chan struct{}
	if g.Waived != nil {
		var stop func()
		var zones []string
		for i := range r.steps {
			zones = append(zones, r.steps[i].Zone.Name)
		}
		waived, stop = g.Waived(zones)
		defer stop()
	}
	select {
	case <-done:
		return Admitted
	case <-ctx.Done():
		return Left
	case <-g.Exiting:
		return Exiting
	case <-waived:
		return Waived
	}
}

// A request is what a Grant and a Simulation have in common: the claims of one request to
// slots, and for how long it has waited.
type request struct {
	clock  clock.Clock
	came   time.Time // zero if that is not known
	result Result

	mu       sync.Mutex // once the request is admitted; locked before that of a zone
	steps    []step
	unserved bool    // it is refused, or its client has left: slots were held in vain
	Turns    bool    // it takes turns in a zone, and does not change
	room     [1]step // mostly enough
}

// A Grant is an admitted request, and holds its slots.
type Grant struct{ request }

// NotServed says that a handler within refuses the request. Its slots stay held until
// they are released. Then what its turns were charged is refunded, and the time counts in no
// mean. A nil Grant has none.
func (g *Grant) NotServed() {
	if g != nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.unserved = true
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
		if t := entries[i].Turn; t != nil {
			r.Turns, t.zone = true, entries[i].Zone
		}
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

// take takes the slot of a step, if it has one. If the request has to wait, take returns its
// claim; sleeper is nil for enforced requests.
func (r *request) take(i int, sleeper sleeper) (Why, *Turn) {
	s := &r.steps[i]
	if s.InFlight == 0 {
		return Admitted, nil
	}
	r.result.Index = s.index
	return s.Zone.arrive(s, r, sleeper)
}

// waited notes that a wait is over, and how long it was.
func (r *request) waited(s *step, began time.Time) {
	took := r.now().Sub(began)
	s.Waited += took
	r.result.Waited += took
	r.result.Index = s.index
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
