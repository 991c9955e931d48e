package admission

import (
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/clock"
)

// A Simulation is what would become of a request if a group of shadow zones were
// enforced beside those that are. It runs beside the request and never holds it up: the
// request waits for its delay in the queue of a shadow zone, takes its slots when both
// its delay and the real admission are over, and holds them for as long as the real
// request is served; see virtualSlot for requests that take turns. A simulated wait may
// outlast the request.
//
// Whatever waits is a timer: there are at most as many as MaxWaiting allows, one for
// each slot that is held longer than the request lasts, and one for each request on
// which the upstream works after its client has left, at most mostUnseen of a key.
type Simulation struct {
	request
	tell     func(Result)
	began    time.Time     // when the real admission was over
	admitted time.Time     // when the simulated one was
	ended    bool          // the real request is over
	served   time.Duration // how long that took from then on
	fate     Fate
}

// A Fate is how the upstream's work on a request has ended.
type Fate uint8

const (
	// Answered means that the upstream has answered the request.
	Answered Fate = iota
	// ClientLeft means that the client has left before that. The upstream works on.
	ClientLeft
	// Failed means that the upstream has failed to answer, or never saw the request.
	Failed
)

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
// the delay before it is over. The function done must neither block nor panic:
// requests behind this one wait for it. Simulate keeps no reference to entries.
func Simulate(since time.Time, entries []Entry, done func(Result)) *Simulation {
	s := &Simulation{tell: done}
	s.sim = s
	s.setSteps(entries)
	s.start(since)
	return s
}

// Watch returns a simulation of a request that another zone of the group would refuse. In
// a zone where requests take turns, it tells that the upstream works on the request all
// the same.
func Watch(e Entry) *Simulation {
	s := new(Simulation)
	s.sim, s.over, s.told = s, true, true
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
	slots := false
	for i := range s.steps {
		at := &s.steps[i]
		slots = slots || at.InFlight > 0
		if at.Turn != nil {
			at.virtual = new(virtualSlot)
			at.Zone.begin(&at.Entry, at.virtual)
		}
	}
	if s.waiting == nil && !s.over {
		s.takeSlots()
	}
	// While the delay lasts, nothing but the lack of a slot can refuse it.
	early, delay := s.waiting != nil && !slots, time.Duration(0)
	if early {
		s.told, delay = true, s.steps[s.waiting.step].Delay
	}
	s.unlock()
	if early {
		s.tell(Result{Why: Admitted, Waited: delay})
	}
}

// Release says that the request is over, or that it has become a tunnel, which
// holds no slot. Release without Begin says that the request was refused or its
// client left, and ends the simulation. It may be called any number of times and
// by any goroutine.
func (s *Simulation) Release() {
	s.mu.Lock()
	if !s.open {
		s.mu.Unlock()
		s.cancel(Left)
		return
	}
	if s.ended {
		s.mu.Unlock()
		return
	}
	s.ended, s.served = true, s.now().Sub(s.began)
	late, holds := s.admitted.Sub(s.began), false
	for i := range s.steps {
		if s.steps[i].virtual == nil {
			holds = holds || s.over && s.steps[i].slot != nil
		} else {
			s.endWork(i)
		}
	}
	s.mu.Unlock()
	switch {
	case !holds: // not yet all, or never
	case late > 0:
		clock.AfterFunc(s.clock, late, s.releaseSlots)
	default:
		s.releaseSlots()
	}
}

// releaseSlots gives back the slots for which requests take no turns. Virtual slots are
// held for as long as they keep a worker busy.
func (s *Simulation) releaseSlots() {
	for i := range s.steps {
		if s.steps[i].Turn == nil {
			s.giveBack(i)
		}
	}
}

// finished notes when the slots were taken, and arranges for their release if the
// request is over already. The caller holds the lock.
func (s *Simulation) finished() {
	s.admitted = s.now()
	if s.result.Why != Admitted {
		return
	}
	holds := false
	for i := range s.steps {
		switch at := &s.steps[i]; {
		case at.slot == nil:
		case at.Turn != nil:
			s.hold(i)
		default:
			holds = true
		}
	}
	if s.ended && holds {
		clock.AfterFunc(s.clock, s.served, s.releaseSlots)
	}
}
