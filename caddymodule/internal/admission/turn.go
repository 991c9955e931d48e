package admission

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/fairqueue"
)

// A claim is that of a request which holds a slot of a zone or waits for one. Without a
// Turn it has no keys, so that it goes by the order of arrival.
type claim struct {
	fairqueue.Request

	turn  *Turn         // nil if it takes no turns
	key   *keyState     // while it waits or holds a slot
	since time.Time     // it holds its slot
	held  time.Duration // before it gave the slot up for a while

	// length is for how long a virtual slot is held, if that is known.
	length time.Duration
}

// A Turn is how a request takes turns with others for the slots of a zone. It serves
// one admission. Set the fields of its [fairqueue.Request] before; the others tell
// afterwards what has become of it.
type Turn struct {
	claim

	// Ahead is how many requests would have been served before this one when it
	// arrived, and Predicted how long it would have waited. Both are zero if it got its
	// slot at once.
	Ahead     int
	Predicted time.Duration

	total atomic.Int64 // nanoseconds, once the slot is given back
}

// claim returns the request's claim to a slot: the one to which it returns after it has
// given its slot up, or a new one.
func (s *step) claim() *claim {
	switch {
	case s.slot != nil:
		return s.slot
	case s.Turn != nil:
		s.Turn.turn = s.Turn
		return &s.Turn.claim
	}
	c := claims.Get().(*claim)
	c.Rank = fairqueue.First
	return c
}

// claims without turns are used again: most slots are free when they are wanted.
var claims = sync.Pool{New: func() any { return new(claim) }}

// free lets a claim be used again of which nobody else knows, since it has never waited.
func (c *claim) free() {
	if c.turn == nil && c.Owner == nil {
		*c = claim{}
		claims.Put(c)
	}
}

// Held returns for how long the request held its slot, and false until that is given
// back. It may be called at any time.
func (t *Turn) Held() (held time.Duration, over bool) {
	nanoseconds := t.total.Load()
	return time.Duration(nanoseconds), nanoseconds > 0
}

// limits are those that an entry sets. Who waits in the order of arrival is not refused
// by a prediction.
func (e *Entry) limits() fairqueue.Limits {
	l := fairqueue.Limits{InFlight: e.InFlight, MaxWait: e.MaxWait, MaxWaiting: e.MaxWaiting}
	if e.Turn == nil && e.MaxWait > 0 {
		l.MaxWait = math.MaxInt64
	}
	return l
}

// SetLimits changes the limits of all who wait for slots, as a new config does. Requests
// bring the limits of their config, too: these count until the next one comes.
func (z *Zone) SetLimits(inFlight int, maxWait time.Duration, maxWaiting int) {
	z.mu.Lock()
	for _, k := range z.keys {
		k.limits = fairqueue.Limits{InFlight: inFlight, MaxWait: maxWait, MaxWaiting: maxWaiting}
	}
	z.mu.Unlock()
	z.wakeAll()
}

// refresh tells the rows of a key their limits. Requests of other keys, and those that
// are delayed, take places in them.
func (z *Zone) refresh(k *keyState, l fairqueue.Limits) {
	l.InFlight = z.slots(l.InFlight)
	l.Elsewhere = z.waiting - k.slots.Len()
	k.slots.SetLimits(l)
}

// arrive lets a request take its turn: it gets a slot, a place in its row, or is
// refused. A request that has given its slot up for another one returns to it. If it
// waits, there is a waiter. When the caller holds no request's lock any more, it
// refuses the request that is displaced, if any, and calls wake if that is wanted: the
// request may have brought more slots.
func (z *Zone) arrive(r *request, s *step) (decision fairqueue.Decision, w, displaced *waiter, wanted bool) {
	c := s.claim()
	z.mu.Lock()
	defer z.mu.Unlock()
	k := z.state(s.Key)
	k.limits = s.limits()
	z.refresh(k, k.limits)
	if !s.until.IsZero() {
		if !k.slots.Return(&c.Request) {
			decision.Outcome = fairqueue.Waiting
		}
	} else {
		decision = k.slots.Arrive(&c.Request)
		if c.turn != nil {
			c.turn.Ahead, c.turn.Predicted = decision.Ahead, decision.Predicted
		}
	}
	if d := decision.Displaced; d != nil {
		displaced = d.Owner.(*waiter)
		displaced.claim.key = nil
	}
	switch decision.Outcome {
	case fairqueue.Served:
		s.slot, c.key = c, k
		if c.turn != nil { // only turns are measured
			c.since = z.Now()
		}
	case fairqueue.Waiting:
		c.key = k
		w = r.newWaiter(r.next, r.now())
		w.claim, c.Owner = c, w
		z.grow()
	default:
		c.free()
	}
	z.count(k)
	wanted = k.slots.Len() > 0 && k.slots.Running() < k.slots.Limits().InFlight
	z.forget(k)
	return decision, w, displaced, wanted
}

// keepEarly counts a request of a key that came too early for its turn, and now waits. It
// returns false if there are too many.
func (z *Zone) keepEarly(key string, l fairqueue.Limits) bool {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.waiting >= l.MaxWaiting || z.early[key] >= l.WaitingPerKey() {
		return false
	}
	if z.early == nil {
		z.early = make(map[string]int)
	}
	z.early[key]++
	z.waiting++
	return true
}

// leaveEarly forgets a request that does not wait for its time any more.
func (z *Zone) leaveEarly(key string) {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.early[key]--; z.early[key] == 0 {
		delete(z.early, key)
	}
	z.waiting--
}

// Ask returns what would become of a request that takes turns if it came now.
func (z *Zone) Ask(e *Entry) Why {
	z.mu.Lock()
	defer z.mu.Unlock()
	if early := e.early(); early > e.MaxWait {
		return TooLong
	} else if early > 0 {
		return Admitted // by then, all may be different
	}
	k := z.keys[e.Key]
	if k == nil {
		return Admitted
	}
	z.refresh(k, e.limits())
	d := k.slots.Ask(&e.Turn.Request)
	e.Turn.Ahead, e.Turn.Predicted = d.Ahead, d.Predicted
	return e.whyOf(d.Outcome)
}

// whyOf returns how an admission ends at once, or Admitted.
func (e *Entry) whyOf(o fairqueue.Outcome) Why {
	if o == fairqueue.TooLong && e.Turn == nil { // it may not wait at all
		return NoSlot
	}
	return [...]Why{fairqueue.Served: Admitted, fairqueue.Waiting: Admitted, fairqueue.TooLong: TooLong, fairqueue.Full: QueueFull}[o]
}

// count brings the totals of the zone up to date with the slots and rows of a key. It is
// called after each change of them, before the zone is unlocked.
func (z *Zone) count(k *keyState) {
	running, waiting := k.slots.Running(), k.slots.Len()
	z.served += running - k.counted.running
	z.waiting += waiting - k.counted.waiting
	k.counted.running, k.counted.waiting = running, waiting
}

// yield gives the slot of a request up until it returns. The caller then calls
// wake, when it holds no request's lock.
func (z *Zone) yield(c *claim) {
	z.mu.Lock()
	defer z.mu.Unlock()
	if c.key.slots.Yield(&c.Request) {
		c.held += z.Now().Sub(c.since)
		z.count(c.key)
	}
}

// release gives back whatever a request holds: its slot, or the right to return to
// it. If the request was not served, it is refunded, and does not count in the mean. The
// caller holds no request's lock.
func (z *Zone) release(c *claim, served bool) {
	if held := z.giveBack(c, served); held > 0 && z.Released != nil {
		z.Released(c.turn, held)
	}
}

// giveBack is release but for telling who wants to know that a slot was held. It returns
// for how long that was, if with a turn.
func (z *Zone) giveBack(c *claim, served bool) (held time.Duration) {
	z.mu.Lock()
	defer z.mu.Unlock()
	k := c.key
	if k == nil {
		return 0
	}
	c.key = nil
	if c.turn != nil {
		if held = c.held + z.Now().Sub(c.since); c.length > 0 {
			held = c.length
		}
		held = max(held, 1)
	}
	switch {
	case held > 0 && served && k.slots.Release(&c.Request, held), k.slots.Abandon(&c.Request):
		if c.turn != nil {
			c.turn.total.Store(int64(held))
		}
	default:
		k.slots.Leave(&c.Request)
		held = 0
	}
	c.free()
	z.count(k)
	z.advance(k)
	return held
}

// A Load is what a zone with turns has to do.
type Load struct {
	Running, Slots int
	Waiting        [fairqueue.Ranks]int
	Mean           time.Duration // that slots are held
}

// Load returns what the zone has to do. Slots are those of keys
// that have requests, as many as there are while the upstream is cold.
func (z *Zone) Load() (l Load) {
	z.mu.Lock()
	defer z.mu.Unlock()
	for _, k := range z.keys {
		l.Running += k.slots.Running()
		l.Slots += z.slots(k.limits.InFlight)
		for rank := range l.Waiting {
			l.Waiting[rank] += k.slots.Waiting(fairqueue.Rank(rank))
		}
	}
	l.Mean = z.mean.Duration()
	return l
}

// advanceSlots gives free slots to those whose turn it is. It unlocks the zone while
// each of them takes its next step.
func (z *Zone) advanceSlots(k *keyState) {
	if k.slots.Len() == 0 {
		return
	}
	k.advancing++
	for {
		z.refresh(k, k.limits)
		r := k.slots.Next()
		if r == nil {
			break
		}
		z.count(k)
		w := r.Owner.(*waiter)
		w.claim.since = z.Now()
		z.mu.Unlock()
		w.request.resume(w, k)
		z.mu.Lock()
	}
	k.advancing--
}
