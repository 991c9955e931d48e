package admission

import (
	"cmp"
	"sync/atomic"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/fairqueue"
)

// A Turn is how a request takes turns with others for the slots of a zone. It serves
// one admission. Set the fields of the Request before; the others tell afterwards what
// has become of it.
type Turn struct {
	fairqueue.Request

	// Ahead is how many requests would have been served before this one when it
	// arrived, and Predicted how long it would have waited. Both are zero if it got its
	// slot at once.
	Ahead     int
	Predicted time.Duration

	key   *keyState     // while it waits or holds a slot
	since time.Time     // it holds its slot
	held  time.Duration // before it gave the slot up for a while
	total atomic.Int64  // nanoseconds, once the slot is given back

	// length is for how long a virtual slot is held, if that is known.
	length time.Duration
}

// Held returns for how long the request held its slot, and false until that is given
// back. It may be called at any time.
func (t *Turn) Held() (held time.Duration, over bool) {
	nanoseconds := t.total.Load()
	return time.Duration(nanoseconds), nanoseconds > 0
}

// limits are those that an entry sets for requests that take turns.
func (e *Entry) limits() fairqueue.Limits {
	return fairqueue.Limits{InFlight: e.InFlight, MaxWait: e.MaxWait, MaxWaiting: e.MaxWaiting}
}

// SetLimits changes the limits of all who take turns, as a new config does. Requests
// bring the limits of their config, too: these count until the next one comes.
func (z *Zone) SetLimits(inFlight int, maxWait time.Duration, maxWaiting int) {
	z.mu.Lock()
	var changed []string
	for key, k := range z.keys {
		if k.turns != nil {
			k.limits = fairqueue.Limits{InFlight: inFlight, MaxWait: maxWait, MaxWaiting: maxWaiting}
			changed = append(changed, key)
		}
	}
	z.mu.Unlock()
	for _, key := range changed {
		z.wake(key)
	}
}

// refresh tells the rows of a key their limits. Slots that others of the key hold
// without turns are none of theirs, and requests of other keys take places in the
// rows.
func (z *Zone) refresh(k *keyState) {
	l := k.limits
	l.InFlight = max(0, z.slots(l.InFlight)-k.served)
	l.Elsewhere = z.waiting - k.turns.Len()
	k.turns.SetLimits(l)
}

// turnsOf returns the rows of a key, which may be new.
func (z *Zone) turnsOf(key string) *keyState {
	k := z.state(key)
	if k.turns == nil {
		k.turns = new(fairqueue.Queue)
	}
	k.turns.Mean, k.turns.Without = &z.mean, z.without
	return k
}

// arrive lets a request take its turn: it gets a slot, a place in its row, or is
// refused. A request that has given its slot up for another one returns to it. If it
// waits, there is a waiter. When the caller holds no request's lock any more, it
// refuses the request that is displaced, if any, and calls wake if that is wanted: the
// request may have brought more slots.
func (z *Zone) arrive(r *request, s *step) (decision fairqueue.Decision, w, displaced *waiter, wanted bool) {
	t := s.Turn
	z.mu.Lock()
	defer z.mu.Unlock()
	k := z.turnsOf(s.Key)
	k.limits = s.limits()
	z.refresh(k)
	if !s.until.IsZero() {
		if !k.turns.Return(&t.Request) {
			decision.Outcome = fairqueue.Waiting
		}
	} else {
		decision = k.turns.Arrive(&t.Request)
		t.Ahead, t.Predicted = decision.Ahead, decision.Predicted
	}
	if d := decision.Displaced; d != nil {
		displaced = d.Owner.(*waiter)
		displaced.turn.key = nil
	}
	switch decision.Outcome {
	case fairqueue.Served:
		t.key, t.since = k, z.Now()
	case fairqueue.Waiting:
		t.key = k
		w = r.newWaiter(r.next, r.now())
		w.turn, t.Owner = t, w
		z.grow()
	}
	z.countTurns(k)
	wanted = k.turns.Len() > 0 && k.turns.Running() < k.turns.Limits().InFlight
	z.forget(k)
	return decision, w, displaced, wanted
}

// keepEarly lets a request wait that came too early for its turn. It returns false if
// there are too many.
func (z *Zone) keepEarly(w *waiter, s *step) bool {
	key := cmp.Or(s.Turn.Keys[1], s.Turn.Keys[0])
	z.mu.Lock()
	defer z.mu.Unlock()
	if l := s.limits(); z.waiting >= l.MaxWaiting || z.early[key] >= l.WaitingPerKey() {
		return false
	}
	if z.early == nil {
		z.early = make(map[string]int)
	}
	z.early[key]++
	z.waiting++
	w.early = key
	return true
}

// leaveEarly forgets a request that does not wait for its time any more. It returns false
// if it is forgotten already.
func (z *Zone) leaveEarly(w *waiter) bool {
	key := w.early
	if key == "" {
		return false
	}
	if z.early[key]--; z.early[key] == 0 {
		delete(z.early, key)
	}
	z.waiting--
	w.early = ""
	return true
}

// Ask returns what would become of a request that takes turns if it came now.
func (z *Zone) Ask(e *Entry) Why {
	z.mu.Lock()
	defer z.mu.Unlock()
	if early := e.early(z.Now()); early > e.MaxWait {
		return TooLong
	} else if early > 0 {
		return Admitted // by then, all may be different
	}
	k := z.keys[e.Key]
	if k == nil || k.turns == nil {
		return Admitted
	}
	z.refresh(k)
	d := k.turns.Ask(&e.Turn.Request)
	e.Turn.Ahead, e.Turn.Predicted = d.Ahead, d.Predicted
	return whyOf(d.Outcome)
}

// whyOf returns how an admission ends at once, or Admitted.
func whyOf(o fairqueue.Outcome) Why {
	switch o {
	case fairqueue.TooLong:
		return TooLong
	case fairqueue.Full, fairqueue.KeyFull:
		return QueueFull
	}
	return Admitted
}

// countTurns brings the totals of the zone up to date with the rows of a key. It is
// called after each change of them, before the zone is unlocked.
func (z *Zone) countTurns(k *keyState) {
	running, waiting := k.turns.Running(), k.turns.Len()
	z.served += running - k.counted.running
	z.waiting += waiting - k.counted.waiting
	k.counted.running, k.counted.waiting = running, waiting
}

// leaveRow takes w out of its row. It reports false if it is not there any more.
func (z *Zone) leaveRow(w *waiter) bool {
	t := w.turn
	if t.key == nil || !t.key.turns.Leave(&t.Request) {
		return false
	}
	z.countTurns(t.key)
	t.key = nil
	return true
}

// yieldTurn gives the slot of a request up until it returns. The caller then calls
// wake, when it holds no request's lock.
func (z *Zone) yieldTurn(t *Turn) {
	z.mu.Lock()
	defer z.mu.Unlock()
	if t.key.turns.Yield(&t.Request) {
		t.held += z.Now().Sub(t.since)
		z.countTurns(t.key)
	}
}

// endTurn gives back whatever a request holds: its slot, or the right to return to
// it. If the request was not served, it is refunded, and does not count in the mean. The
// caller holds no request's lock.
func (z *Zone) endTurn(t *Turn, served bool) {
	if held, slot := z.giveBack(t, served); slot && z.Released != nil {
		z.Released(t, held)
	}
}

// giveBack is endTurn but for telling who wants to know that a slot was held.
func (z *Zone) giveBack(t *Turn, served bool) (held time.Duration, slot bool) {
	z.mu.Lock()
	defer z.mu.Unlock()
	k := t.key
	if k == nil {
		return 0, false
	}
	t.key = nil
	if held = t.held + z.Now().Sub(t.since); t.length > 0 {
		held = t.length
	}
	if served {
		slot = k.turns.Release(&t.Request, held)
	} else {
		slot = k.turns.Abandon(&t.Request)
	}
	if slot {
		t.total.Store(int64(max(held, 1)))
	} else {
		k.turns.Leave(&t.Request)
	}
	z.countTurns(k)
	z.advanceBoth(k)
	return held, slot
}

// A Load is what a zone with turns has to do.
type Load struct {
	Running, Slots int
	Waiting        [fairqueue.Ranks]int
	Mean           time.Duration // that slots are held
}

// Load returns what those who take turns make of the zone. Slots are those of keys
// that have requests, as many as there are while the upstream is cold.
func (z *Zone) Load() (l Load) {
	z.mu.Lock()
	defer z.mu.Unlock()
	now := z.Now()
	for _, k := range z.keys {
		if k.turns == nil {
			continue
		}
		l.Running += k.turns.Running()
		l.Slots += z.warm.slots(k.limits.InFlight, now)
		for rank := range l.Waiting {
			l.Waiting[rank] += k.turns.Waiting(fairqueue.Rank(rank))
		}
	}
	l.Mean = z.mean.Duration()
	return l
}

// advanceTurns gives free slots to those whose turn it is. It unlocks the zone while
// each of them takes its next step.
func (z *Zone) advanceTurns(k *keyState) {
	if k.turns == nil || k.turns.Len() == 0 {
		return
	}
	k.advancing++
	for {
		z.refresh(k)
		r := k.turns.Next()
		if r == nil {
			break
		}
		z.countTurns(k)
		w := r.Owner.(*waiter)
		w.turn.since = z.Now()
		z.mu.Unlock()
		w.request.resume(w, k)
		z.mu.Lock()
	}
	k.advancing--
}

// displace refuses a request that has lost its place to another one.
func (r *request) displace(w *waiter) {
	r.mu.Lock()
	if r.waiting != w {
		r.mu.Unlock() // its client has left
		return
	}
	r.waited()
	r.finish(QueueFull, w.step)
	r.unlock()
}
