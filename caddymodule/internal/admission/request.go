package admission

import (
	"sync"
	"time"
)

// A request is one on its way: first it waits for its delay, then it takes one
// slot after the other. It is moved on by whoever frees what it waits for: start,
// resume and Passed are all that do so. Enforced and simulated requests differ
// in two things only: when open is set, and who learns of the result.
//
// Locks are taken in this order: a request's, that of its outer request, a
// zone's or the order's. Nobody calls Zone.release or Zone.wake, which move other
// requests on, while holding a request's lock.
type request struct {
	gate  *Gate       // nil for a simulation
	outer *Pass       // of the handler around
	sim   *Simulation // nil for an enforced request

	mu       sync.Mutex
	steps    []step
	next     int     // the first of steps that is not done
	open     bool    // slots may be taken
	waiting  *waiter // nil if it does not wait
	over     bool
	result   Result        // once it is over
	told     bool          // the result
	conflict [2]string     // because of which it did not queue: zones held and wanted
	done     chan struct{} // closed once it is over; nil if it has never waited
	awake    func()        // to be called by the one who waits for done, or nil
	room     [1]step       // mostly enough
}

// A step is what a request has to do in one zone.
type step struct {
	Entry
	index int       // of the entry
	slot  *keyState // whose slot it holds, or nil
}

// A Pass is an admitted request, and holds its slots.
type Pass struct{ request }

// Release gives the slots back. It may be called early, any number of times and
// by any goroutine; a nil Pass has none.
func (p *Pass) Release() {
	if p != nil {
		p.release()
	}
}

// start begins with the delay, counted from since.
func (r *request) start(since time.Time) {
	r.mu.Lock()
	defer r.unlock()
	var longest *step
	for i := range r.steps {
		if s := &r.steps[i]; s.Delay > 0 && (longest == nil || s.Delay > longest.Delay) {
			longest = s
		}
	}
	if longest == nil {
		r.takeSlots()
		return
	}
	w := r.newWaiter(longest, since)
	w.turn = longest.Turn
	if !longest.Zone.delay(w, longest.MaxWaiting) {
		r.finish(QueueFull, longest)
		return
	}
	r.waiting = w
	w.timer = time.AfterFunc(time.Until(since.Add(longest.Delay)), func() { longest.Zone.due(w) })
}

// resume goes on after the wait of w, unless the request has given it up. It
// reports false if somebody has to wake up for that, and will call awake then.
func (r *request) resume(w *waiter, k *keyState) (moved bool) {
	r.mu.Lock()
	if r.waiting != w {
		r.mu.Unlock()
		if w.slots > 0 {
			w.step.Zone.release(k)
		}
		return true
	}
	defer r.unlock()
	r.waited()
	q := &k.delayed
	if w.slots > 0 {
		q, w.step.slot = &k.queued, k
		r.next++
	}
	r.takeSlots()
	if r.sim != nil || !r.over || r.result.Why != Admitted {
		return true
	}
	r.awake = func() { w.step.Zone.moved(k, q) }
	return false
}

// takeSlots takes the slots that are left, as far as they are free, and queues
// for the first that is not. The caller holds the lock.
func (r *request) takeSlots() {
	if !r.open {
		return
	}
	for ; r.next < len(r.steps); r.next++ {
		s := &r.steps[r.next]
		if s.InFlight == 0 {
			continue
		}
		if s.slot = s.Zone.take(s.Key, s.InFlight); s.slot != nil {
			continue
		}
		if r.queue(s); s.slot == nil {
			return
		}
	}
	r.finish(Admitted, nil)
}

// queue queues for the slot of s, if the request may, or takes it if it has come
// free meanwhile. The caller holds the lock.
func (r *request) queue(s *step) {
	if s.MaxWait == 0 {
		r.finish(NoSlot, s)
		return
	}
	w := r.newWaiter(s, time.Now())
	w.slots = s.InFlight
	if !r.mayQueue(w) {
		r.finish(NoSlot, s)
		return
	}
	taken, queued := s.Zone.takeOrQueue(w, s.MaxWaiting)
	if queued {
		r.waiting = w
		w.timer = time.AfterFunc(s.MaxWait, func() { r.expire(w) })
		return
	}
	r.unorder(w)
	if s.slot = taken; taken == nil {
		r.finish(QueueFull, s)
	}
}

func (r *request) newWaiter(s *step, began time.Time) *waiter {
	if r.sim == nil && r.done == nil {
		r.done = make(chan struct{})
	}
	return &waiter{request: r, step: s, began: began}
}

// mayQueue asks the order whether the request may wait for w, and notes that
// it does. The caller holds the lock.
func (r *request) mayQueue(w *waiter) bool {
	if r.gate == nil || r.gate.Order == nil {
		return true
	}
	held := r.appendHeld(nil)
	for outer := r.outer; outer != nil; outer = outer.outer {
		outer.mu.Lock()
		held = outer.appendHeld(held)
		outer.mu.Unlock()
	}
	if conflict := r.gate.Order.wait(held, w.step.Zone); conflict != nil {
		r.conflict = [2]string{conflict.Name, w.step.Zone.Name}
		return false
	}
	w.held = held
	return true
}

// appendHeld appends the zones of which the request holds slots.
func (r *request) appendHeld(zones []*Zone) []*Zone {
	for i := range r.steps {
		if r.steps[i].slot != nil {
			zones = append(zones, r.steps[i].Zone)
		}
	}
	return zones
}

// unorder tells the order that the request no longer waits for w.
func (r *request) unorder(w *waiter) {
	if len(w.held) > 0 {
		r.gate.Order.done(w.held, w.step.Zone)
	}
}

// waited notes that the wait is over, and how long it was. The caller holds the
// lock.
func (r *request) waited() {
	w := r.waiting
	r.waiting = nil
	w.timer.Stop()
	r.unorder(w)
	took := time.Since(w.began)
	w.step.Waited += took
	r.result.Waited += took
	r.result.Index = w.step.index
}

// expire ends the wait of w for a slot.
func (r *request) expire(w *waiter) {
	r.mu.Lock()
	if r.waiting != w || !w.step.Zone.leave(w) {
		r.mu.Unlock() // it has got its slot
		return
	}
	r.waited()
	r.finish(TimedOut, w.step)
	r.unlock()
	w.step.Zone.wake(w.step.Key)
}

// cancel ends the request's way, unless it is over.
func (r *request) cancel(why Why) {
	r.mu.Lock()
	if r.over {
		r.mu.Unlock()
		return
	}
	w := r.waiting
	if w != nil {
		w.step.Zone.leave(w) // or resume finds that it does not wait any more
		r.waited()
	}
	r.finish(why, nil)
	r.unlock()
	if w != nil {
		w.step.Zone.wake(w.step.Key)
	}
}

// finish notes the result, and the step that refused the request, if one did.
// The caller holds the lock, and ends with unlock.
func (r *request) finish(why Why, s *step) {
	r.over, r.result.Why = true, why
	if s != nil {
		r.result.Index = s.index
	}
	if r.sim != nil {
		r.sim.finished()
	}
}

// unlock unlocks the request. If it has just finished it gives back what it
// holds in vain, and then says so.
func (r *request) unlock() {
	if !r.over || r.told {
		r.mu.Unlock()
		return
	}
	r.told = true
	r.mu.Unlock()
	if r.result.Why != Admitted {
		r.release()
	}
	switch {
	case r.sim != nil:
		r.sim.tell(r.result)
	case r.done != nil:
		close(r.done)
	}
}

// release gives back the slots that the request holds.
func (r *request) release() {
	for i := range r.steps {
		s := &r.steps[i]
		r.mu.Lock()
		slot := s.slot
		s.slot = nil
		r.mu.Unlock()
		if slot != nil {
			s.Zone.release(slot)
		}
	}
}
