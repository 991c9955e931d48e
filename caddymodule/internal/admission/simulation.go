package admission

import (
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/clock"
)

// A Simulation is what would become of a request if a shadow zone were enforced
// beside those that are. It runs beside the request and never holds it up: the
// request waits for its delay in the queue of the shadow zone, takes a slot when
// both its delay and the real admission are over, and holds it for as long as
// the real request is served; see virtualSlot for requests that take turns. A
// simulated wait may outlast the request.
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
	virtual  virtualSlot   // of requests that take turns
}

// Simulate begins a simulation in the zone of e, whose delay counts from since.
// It calls done with the result exactly once: within Simulate, Begin or Release
// if the result is known then, otherwise later from another goroutine. Before
// Begin, done is called with a refusal only. In a zone without slots Begin tells
// the delay before it is over. The function done must neither block nor panic:
// requests behind this one wait for it.
func Simulate(since time.Time, e Entry, done func(Result)) *Simulation {
	s := &Simulation{tell: done}
	s.sim = s
	s.steps = append(s.room[:0], step{Entry: e})
	s.steps[0].Waited = 0
	s.clock = e.Zone.Clock
	s.start(since)
	return s
}

// Begin says that the enforced zones have admitted the request, and that it is
// served from now on.
func (s *Simulation) Begin() {
	s.mu.Lock()
	if s.open || s.over {
		s.mu.Unlock()
		return
	}
	s.open, s.began = true, s.now()
	if e := &s.steps[0].Entry; e.Turn != nil {
		e.Zone.begin(e, &s.virtual)
	}
	if s.waiting == nil {
		s.takeSlots()
	}
	// While the delay lasts, nothing but the lack of a slot can refuse it.
	early := s.waiting != nil && s.steps[0].InFlight == 0
	s.told = s.told || early
	s.unlock()
	if early {
		s.tell(Result{Why: Admitted, Waited: s.steps[0].Delay})
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
	if s.virtual.key != nil {
		if s.steps[0].Zone.goOn(&s.virtual) {
			if s.steps[0].slot != nil {
				s.hold()
			}
			s.follow()
		} else {
			s.done()
		}
		s.mu.Unlock()
		return
	}
	late := s.admitted.Sub(s.began)
	holds := s.steps[0].slot != nil
	s.mu.Unlock()
	switch {
	case !holds: // not yet, or never
	case late > 0:
		clock.AfterFunc(s.clock, late, s.release)
	default:
		s.release()
	}
}

// finished notes when the slot was taken, and arranges for its release if the
// request is over already. The caller holds the lock.
func (s *Simulation) finished() {
	s.admitted = s.now()
	if s.steps[0].Turn != nil {
		if s.steps[0].slot != nil {
			s.hold()
		}
		return
	}
	if s.ended && s.steps[0].slot != nil {
		clock.AfterFunc(s.clock, s.served, s.release)
	}
}
