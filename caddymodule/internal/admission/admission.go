// Package admission holds admitted requests before the next handler: until their delay is
// over, then in a queue until each of their zones has a free slot. Begin with [Gate.Admit].
// [Simulate] does the same for shadow zones, beside a request that it never holds up.
//
// A request is in one of these states, in this order. It may skip any of them:
//
//	state    waits for                         and has
//	early    the time that its pass says       a place of those who wait
//	delayed  the end of its delay              a place of those who wait
//	parked   the enforced zones; in shadow     nothing
//	queued   a slot of the zone that is next   a claim, which the zone ends: Zone.end
//	served   its handler                       the claims of all its zones
//	aside    a slot of a zone within           a claim that is to return; see Gate.Admit
//
// A [Zone] owns places, claims and the order in which claims get slots, all under its lock.
// A Grant and a Simulation own the claims of one request, under a lock that is taken before
// that of a zone. A zone never calls a request: it closes a channel, or starts a timer.
//
// The package keeps no limits. They come with each request, so that a new
// config changes the limits and nothing else: slots, queues and the order in
// them survive a reload.
package admission

import (
	"cmp"
	"context"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/clock"
)

// An Entry is the delay and the slot of a request in one zone.
type Entry struct {
	Zone *Zone
	Key  string // whose queue and slots

	// Delay is how long the request must wait until earlier charges have leaked,
	// counted from the decision. Zero means no wait. If several zones have one,
	// the request waits in the zone with the longest delay only.
	Delay time.Duration

	// InFlight is how many requests of the key may be served at once. Zero means
	// any number; then the request takes no slot.
	InFlight int

	// MaxWait is how long the request may queue for a slot. Zero means not at all:
	// it gets a free slot or is refused.
	MaxWait time.Duration

	// MaxWaiting is how many requests of all keys may wait in the zone at once,
	// for their delay or for a slot.
	MaxWaiting int

	// Turn, if not nil, is how the request takes turns with others, instead of waiting
	// in the order of arrival. Then MaxWait is that of members; see
	// [fairqueue.Limits]. A Turn belongs to one admission.
	Turn *Turn

	// NotBefore, if not zero, is when a request that takes turns arrives for its turn. It
	// waits until then, if that is within MaxWait, and is refused otherwise. With one key,
	// the last one of the turn, a tenth of MaxWaiting may wait so. Simulations do not look
	// at it.
	NotBefore time.Time

	// Waited is set by Admit, whatever the result: how long the request waited in
	// this zone, for its delay or for a slot.
	Waited time.Duration
}

// Why says how an admission ended.
type Why uint8

const (
	// Admitted means that the delay is over and all slots are taken.
	Admitted Why = iota
	// QueueFull means that MaxWaiting requests were waiting already.
	QueueFull
	// NoSlot means that no slot was free and the request could not queue for one.
	NoSlot
	// TimedOut means that no slot came free within MaxWait.
	TimedOut
	// TooLong means that the request would have to wait longer for its turn than it
	// may.
	TooLong
	// Exiting means that the process is about to end.
	Exiting
	// Waived means that the request need not wait any longer, and is served without the
	// slots that it has not got.
	Waived
	// Left means that the client left, which is no refusal. A simulation ends
	// with it if its request is not served.
	Left
)

// String returns the name of the constant in lower case.
func (w Why) String() string {
	return [...]string{"admitted", "queue full", "no slot", "timed out", "too long", "exiting", "waived", "left"}[w]
}

// Refused reports whether the request must be refused.
func (w Why) Refused() bool { return w != Admitted && w != Waived && w != Left }

// A Result says how an admission ended.
type Result struct {
	Why Why

	// Index is that of the entry that refused the request, or in which it was
	// waiting when the client left. It means nothing if the request was admitted.
	Index int

	// Waited is how long the request waited in all its zones together. Time
	// between a simulated delay and the real admission does not count.
	Waited time.Duration
}

// A Gate admits the requests of one config. The zero value is ready for use.
type Gate struct {
	// Exiting is closed when the process is about to end. From then on no request
	// waits. If nil, the process never ends.
	Exiting <-chan struct{}

	// Waived, if not nil, returns a channel that is closed when a request of these zones
	// need not wait any longer. It is called for requests that have to wait, and done when
	// they do not any more. No zones mean that there are more than the gate knows.
	Waived func(zones []string) (waived <-chan struct{}, done func())
}

// Admit waits until the request may be served: until the longest of its delays is over,
// counted from since, then for a slot in each zone that limits them, in the order of the
// zones' names. If it admits the request, the caller must call Release on the Grant;
// otherwise the Grant is nil and no slot is held. Admit keeps no reference to entries.
//
// Outer is the Grant of the handler around this one, or nil. Nested handlers may
// take slots in any order, so two requests could wait for each other's slots.
// Therefore a request that must wait for a slot gives up the slots of outer
// handlers that come later in the order of names. When it has its slot, it takes
// those again, ahead of all others. MaxWait limits both waits together. The slots
// then belong to the inner Grant.
func (g *Gate) Admit(ctx context.Context, since time.Time, entries []Entry, outer *Grant) (*Grant, Result) {
	grant := new(Grant)
	r := &grant.request
	r.outer = outer
	r.setSteps(entries)
	why, waited := g.admit(ctx, r, since)
	if why == Admitted && waited && ctx.Err() != nil { // both at once
		why = Left
	}
	for i := range entries {
		entries[i].Waited = 0
	}
	for i := range r.steps {
		entries[r.steps[i].index].Waited += r.steps[i].Waited
	}
	if r.result.Why = why; why == Admitted {
		return grant, r.result
	}
	grant.unserved = true
	grant.Release()
	return nil, r.result
}

// admit takes a request through all that it has to wait for. It reports whether it had to.
func (g *Gate) admit(ctx context.Context, r *request, since time.Time) (why Why, waited bool) {
	for i := range r.steps {
		s := &r.steps[i]
		early := s.early()
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
	for i := 0; i < len(r.steps); i++ { // a wait may append some
		why, c := r.take(i, nil)
		if c != nil {
			waited = true
			r.yield(i)
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
		if r.outer == nil { // which may have yielded slots of its own zones
			for i := range r.steps {
				zones = append(zones, r.steps[i].Zone.Name)
			}
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
