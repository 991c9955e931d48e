package admission

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/clock"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/fairqueue"
)

// A request goes through the lifecycle: it waits for its delay, then it takes one
// slot after the other. The goroutine that frees what it waits for, or a timer,
// takes it to the next step by calling resume. Enforced and simulated requests
// differ in two things only: when slots may be taken, and who learns the result.
//
// Locks are taken in this order: a request's, that of its outer request, a
// zone's. Zone.release, wake and moved resume other requests and are therefore
// never called while holding a request's lock.
type request struct {
	outer *Grant      // of the handler around
	sim   *Simulation // nil for an enforced request
	clock clock.Clock

	mu       sync.Mutex
	steps    []step
	next     int     // the first of steps that is not done
	open     bool    // slots may be taken
	waiting  *waiter // nil if it does not wait
	ousted   *waiter // that is to be refused when the lock is released
	wakes    []*step // whose zones are to be woken then
	over     bool
	unserved bool          // it is refused, or its client has left: slots were held in vain
	told     bool          // the result
	result   Result        // once it is over
	done     chan struct{} // closed once it is over; nil if it has never waited
	awake    func()        // if not nil, Admit calls it after done is closed
	room     [1]step       // mostly enough
}

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

// A step is what a request has to do in one zone.
type step struct {
	Entry
	index int    // of the entry
	slot  *claim // that holds a slot, or has given it up and is to return to one; or nil

	virtual *virtualSlot // of a simulated request that takes turns, once it has begun

	// For a slot that was given up for another: until when to take it again.
	until time.Time
}

// A Grant is an admitted request, and holds its slots.
type Grant struct{ request }

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
func (g *Grant) Release() {
	if g != nil {
		g.release()
	}
}

// ReleaseTurns gives the slots back for which requests take turns. Otherwise it is like
// Release.
func (g *Grant) ReleaseTurns() {
	if g != nil {
		g.releaseEach(true)
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

func (r *request) now() time.Time { return clock.Now(r.clock) }

// early returns for how long the request must wait before it takes its turn.
func (e *Entry) early() time.Duration {
	if e.NotBefore.IsZero() {
		return 0
	}
	return e.NotBefore.Sub(e.Zone.Now())
}

// start lets the request wait for its delay, counted from since.
func (r *request) start(since time.Time) {
	r.mu.Lock()
	defer r.unlock()
	longest := 0
	for i := range r.steps {
		if r.steps[i].Delay > r.steps[longest].Delay {
			longest = i
		}
	}
	if r.steps[longest].Delay <= 0 {
		r.takeSlots()
		return
	}
	s := &r.steps[longest]
	w := r.newWaiter(longest, since)
	w.dueAt = s.Due
	if !s.Zone.delay(w, s.MaxWaiting) {
		r.finish(QueueFull, longest)
		return
	}
	r.waiting = w
	w.timer = clock.AfterFunc(r.clock, since.Add(s.Delay).Sub(r.now()), func() { w.zone.due(w) })
}

// resume goes on after the wait of w, unless the request has given it up. It
// reports false if the request's goroutine has to wake up first and call awake.
func (r *request) resume(w *waiter, k *keyState) (moved bool) {
	r.mu.Lock()
	if r.waiting != w {
		r.mu.Unlock()
		if w.claim != nil {
			w.zone.release(w.claim, false)
		}
		return true
	}
	defer r.unlock()
	r.waited()
	if w.claim != nil {
		r.steps[w.step].slot = w.claim
		r.next++
	}
	r.takeSlots()
	if r.sim != nil || w.claim != nil || !r.over || r.result.Why != Admitted {
		return true
	}
	r.awake = func() { w.zone.moved(k) }
	return false
}

// takeSlots takes the slots that are left, as far as they are free, and queues
// for the first that is not. The caller holds the lock.
func (r *request) takeSlots() {
	if !r.open {
		return
	}
	for ; r.next < len(r.steps); r.next++ {
		if r.steps[r.next].InFlight == 0 {
			continue
		}
		if r.arrive(); r.waiting != nil || r.over {
			return
		}
	}
	r.finish(Admitted, -1)
}

// arrive takes the request's turn for the slot of the next step. The caller holds
// the lock.
func (r *request) arrive() {
	s := &r.steps[r.next]
	decision, w, displaced, wanted := s.Zone.arrive(r, s)
	r.ousted = displaced
	if wanted {
		r.wakes = append(r.wakes, s)
	}
	switch {
	case w != nil:
		r.waiting = w
		until := s.until
		if until.IsZero() {
			until = w.began.Add(s.MaxWait)
		}
		w.timer = clock.AfterFunc(r.clock, until.Sub(r.now()), func() { r.stop(w, TimedOut) })
		r.yield(until)
	case decision.Outcome != fairqueue.Served:
		r.finish(s.whyOf(decision.Outcome), r.next)
	}
}

// yield gives up the slots of outer requests whose zones come later, by name,
// than that of the slot the request waits for, and has it take them again after
// that. So each request that waits holds only slots of zones that come earlier,
// and no two wait for each other. The caller holds the lock.
func (r *request) yield(until time.Time) {
	s := &r.steps[r.next]
	var yielded []step
	for outer := r.outer; outer != nil; outer = outer.outer {
		outer.mu.Lock()
		for i := range outer.steps {
			if o := &outer.steps[i]; o.slot != nil && o.Zone.Name > s.Zone.Name {
				o.Zone.yield(o.slot)
				yielded, r.wakes = append(yielded, *o), append(r.wakes, o)
				o.slot = nil
			}
		}
		outer.mu.Unlock()
	}
	if len(yielded) == 0 {
		return
	}
	index := s.index
	for _, y := range yielded {
		y.Waited, y.index, y.until = 0, index, until
		r.steps = append(r.steps, y)
	}
	slices.SortStableFunc(r.steps[r.next+1:], byName)
}

// byName is the order in which slots are taken.
func byName(a, b step) int { return cmp.Compare(a.Zone.Name, b.Zone.Name) }

func (r *request) newWaiter(i int, began time.Time) *waiter {
	if r.sim == nil && r.done == nil {
		r.done = make(chan struct{})
	}
	return &waiter{request: r, step: i, zone: r.steps[i].Zone, key: r.steps[i].Key, began: began}
}

// waited notes that the wait is over, and how long it was. The caller holds the
// lock.
func (r *request) waited() {
	w := r.waiting
	r.waiting = nil
	w.timer.Stop()
	took, s := r.now().Sub(w.began), &r.steps[w.step]
	s.Waited += took
	r.result.Waited += took
	r.result.Index = s.index
}

// stop ends the request's admission, unless it is over. If w is not nil, it ends that wait
// for a slot only: because its time is over, or because it has lost its place to another
// one, QueueFull.
func (r *request) stop(w *waiter, why Why) {
	r.mu.Lock()
	at := r.waiting
	if r.over || w != nil && at != w || at != nil && !at.zone.leave(at) && why == TimedOut {
		r.mu.Unlock() // it has got its slot, or its client has left
		return
	}
	if at != nil { // or resume finds that it does not wait any more
		r.waited()
	}
	r.finish(why, -1)
	r.unlock()
	if at != nil {
		at.zone.wake(at.key)
	}
}

// finish notes the result, and the step that refused the request, or -1. The
// caller holds the lock, and ends with unlock.
func (r *request) finish(why Why, i int) {
	r.over, r.unserved, r.result.Why = true, why != Admitted, why
	if i >= 0 {
		r.result.Index = r.steps[i].index
	}
	if r.sim != nil {
		r.sim.finished()
	}
}

// unlock unlocks the request, and then wakes those for whom there are slots now. If
// the request has just finished, unlock also releases the slots of a refused one,
// and then reports the result.
func (r *request) unlock() {
	ousted, wakes := r.ousted, r.wakes
	r.ousted, r.wakes = nil, nil
	finished := r.over && !r.told
	r.told = r.told || finished
	r.mu.Unlock()
	if ousted != nil {
		ousted.request.stop(ousted, QueueFull)
	}
	for _, s := range wakes {
		s.Zone.wake(s.Key)
	}
	if !finished {
		return
	}
	if r.result.Why != Admitted {
		r.release()
	}
	switch {
	case r.sim != nil:
		r.sim.tell(r.result)
	case r.done != nil:
		clock.Close(r.clock, r.done)
	}
}

// release gives back the slots that the request holds.
func (r *request) release() {
	for i := range r.steps {
		r.giveBack(i)
	}
}

// releaseEach gives back the slots for which requests take turns, or the others.
func (r *request) releaseEach(turns bool) {
	for i := range r.steps {
		if turns == (r.steps[i].Turn != nil) {
			r.giveBack(i)
		}
	}
}

// giveBack gives back the slot of a step, if the request holds it.
func (r *request) giveBack(i int) {
	s := &r.steps[i]
	r.mu.Lock()
	slot, served := s.slot, !r.unserved
	s.slot = nil
	r.mu.Unlock()
	if slot != nil {
		s.Zone.release(slot, served)
	}
}
