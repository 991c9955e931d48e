package admission

import (
	"slices"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/clock"
)

// A Simulation is what would become of a request if a group of shadow zones were
// enforced beside those that are. It runs beside the request and never holds it up: the
// request waits for its delay in the zone with the longest, takes its slots when both
// its delay and the real admission are over, and holds them for as long as the real
// request is served; see virtualSlot for requests that take turns. A simulated wait may
// outlast the request.
//
// Whatever waits is a timer: there are at most as many as MaxWaiting allows, one for
// each slot that is held longer than the request lasts, and one for each request on
// which the upstream works after its client has left, at most mostUnseen of a key.
type Simulation struct {
	request
	tell func(Result)

	// The lock of the request guards these.
	delayed  *step         // whose delay it waits for; or nil
	delay    clock.Timer   // that ends it
	waits    time.Time     // since when it waits for a delay or a slot
	next     int           // the first of steps whose slot it has not got
	over     bool          // its admission
	told     bool          // the result
	open     bool          // the real admission is over
	began    time.Time     // when it was
	admitted time.Time     // when the simulated one was
	ended    bool          // the real request is over
	served   time.Duration // how long that took from then on
	fate     Fate
}

// Saw says how the upstream's work has ended. It is called before Release.
func (s *Simulation) Saw(f Fate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fate = max(s.fate, f)
}

// Simulate begins a simulation in the zones of entries, of which there is at least one.
// A delay counts from since. It calls done with the result exactly once: within Simulate,
// Begin or Release if the result is known then, otherwise later from another goroutine.
// Before Begin, done is called with a refusal only. In zones without slots Begin tells
// the delay before it is over. The function done must not block. Simulate keeps no
// reference to entries.
func Simulate(since time.Time, entries []Entry, done func(Result)) *Simulation {
	s := &Simulation{tell: done}
	s.setSteps(entries)
	s.mu.Lock()
	defer s.unlock()
	switch longest := s.longest(); {
	case longest.Delay <= 0:
	case longest.Zone.enter(&longest.Entry, ""):
		s.delayed, s.waits = longest, since
		s.delay = clock.AfterFunc(s.clock, since.Add(longest.Delay).Sub(s.now()), s.due)
	default:
		s.result.Index = longest.index
		s.finish(QueueFull)
	}
	return s
}

// Watch returns a simulation of a request that another zone of the group would refuse. In
// a zone where requests take turns, it tells that the upstream works on the request all
// the same.
func Watch(e Entry) *Simulation {
	s := &Simulation{over: true, told: true}
	s.setSteps([]Entry{e})
	return s
}

// Waited returns how long the request has waited in the zone of the entry with this
// index. It is known when the simulation has told its result.
func (s *Simulation) Waited(index int) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.steps {
		if s.steps[i].index == index {
			return s.steps[i].Waited
		}
	}
	return 0
}

// Begin says that the enforced zones have admitted the request, and that it is
// served from now on.
func (s *Simulation) Begin() {
	s.mu.Lock()
	if s.open {
		s.mu.Unlock()
		return
	}
	s.open, s.began = true, s.now()
	s.came = s.began
	slots := false
	for i := range s.steps {
		at := &s.steps[i]
		slots = slots || at.InFlight > 0
		if at.Turn != nil {
			at.virtual = new(virtualSlot)
			at.Zone.begin(&at.Entry, at.virtual)
		}
	}
	// While the delay lasts, nothing but the lack of a slot can refuse it.
	early := s.delayed
	if early == nil {
		s.takeSlots()
	} else if s.told = !slots; slots {
		early = nil
	}
	s.unlock()
	if early != nil {
		s.tell(Result{Why: Admitted, Waited: early.Delay})
	}
}

// due goes on after the delay.
func (s *Simulation) due() {
	s.mu.Lock()
	defer s.unlock()
	if s.delayed == nil {
		return // it has been released
	}
	s.undelay()
	if s.open {
		s.takeSlots()
	}
}

// undelay ends the wait for the delay. The caller holds the lock.
func (s *Simulation) undelay() {
	s.delayed.Zone.leave("")
	s.waited(s.delayed, s.waits)
	s.delayed = nil
}

// takeSlots takes the slots that are left, as far as they are free, and waits for the first
// that is not. The caller holds the lock.
func (s *Simulation) takeSlots() {
	if s.over {
		return
	}
	why := Admitted
	for ; s.next < len(s.steps) && why == Admitted; s.next++ {
		var c *Turn
		if why, c = s.take(s.next, s); c != nil {
			s.waits = s.now()
			return
		}
	}
	s.finish(why)
}

// awake goes on after the wait for a slot.
func (s *Simulation) awake() {
	s.mu.Lock()
	defer s.unlock()
	at := &s.steps[s.next]
	s.waited(at, s.waits)
	if why := at.slot.why; why != Admitted {
		s.finish(why)
		return
	}
	s.next++
	s.takeSlots()
}

// unlock unlocks the simulation, and then tells the result, once it is known.
func (s *Simulation) unlock() {
	tell, result := s.over && !s.told, s.result
	s.told = s.told || tell
	s.mu.Unlock()
	if tell {
		s.tell(result)
	}
}

// NotServed says that a handler within would refuse the request, if the group were enforced.
// Then it keeps no slot.
func (s *Simulation) NotServed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unserved = true; s.over {
		s.giveBack(func(*step) bool { return true })
	}
}

// Release says that the request is over, or that it has become a tunnel, which
// holds no slot. Release without Begin says that the request was refused or its
// client left, and ends the simulation. It may be called any number of times and
// by any goroutine.
func (s *Simulation) Release() {
	s.mu.Lock()
	defer s.unlock()
	if !s.open {
		if s.delayed != nil {
			s.delay.Stop()
			s.undelay()
		}
		if !s.over {
			s.finish(Left)
		}
		return
	}
	if s.ended {
		return
	}
	s.ended, s.served = true, s.now().Sub(s.began)
	for i := range s.steps {
		if at := &s.steps[i]; at.virtual != nil {
			s.endWork(at)
		}
	}
	if s.over {
		s.releaseAfter(s.admitted.Sub(s.began))
	}
}

// finish notes the result, and when the slots were taken, and arranges for their release if
// the request is over already. The caller holds the lock.
func (s *Simulation) finish(why Why) {
	s.over, s.unserved, s.result.Why, s.admitted = true, s.unserved || why != Admitted, why, s.now()
	if s.unserved {
		s.giveBack(func(*step) bool { return true })
		return
	}
	for i := range s.steps {
		if at := &s.steps[i]; at.virtual != nil && at.slot != nil {
			s.hold(at)
		}
	}
	if s.ended {
		s.releaseAfter(s.served)
	}
}

// releaseAfter gives back, after so long, the slots for which requests take no turns.
// Virtual slots are held for as long as they keep a worker busy.
func (s *Simulation) releaseAfter(d time.Duration) {
	plain := func(at *step) bool { return at.virtual == nil }
	switch {
	case !slices.ContainsFunc(s.steps, func(at step) bool { return at.slot != nil && plain(&at) }):
	case d <= 0:
		s.giveBack(plain)
	default:
		s.after(d, func() { s.giveBack(plain) })
	}
}

// after calls f, with the lock held, when d has passed.
func (s *Simulation) after(d time.Duration, f func()) {
	clock.AfterFunc(s.clock, d, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		f()
	})
}

// hold arranges for the release of the virtual slot of a step. The caller holds the lock,
// and the request its slot.
func (s *Simulation) hold(at *step) {
	v := at.virtual
	length := v.used
	switch {
	case v.guessed:
		return
	case !v.ended:
		if length = at.Zone.guess(v); length == 0 {
			return
		}
		v.guessed = true
	}
	at.Turn.length = max(length, 1)
	s.after(s.admitted.Add(length).Sub(s.now()), func() { s.giveBack(func(of *step) bool { return of == at }) })
}

// endWork looks whether the upstream is done with a step of the request, which is over,
// and again until it is. The caller holds the lock.
func (s *Simulation) endWork(at *step) {
	first := at.virtual.lasts == 0
	rest := at.Zone.look(at.virtual, s.fate)
	if (first || rest == 0) && at.slot != nil && s.over { // else finished holds it
		s.hold(at)
	}
	if rest > 0 {
		s.after(rest, func() { s.endWork(at) })
	}
}
