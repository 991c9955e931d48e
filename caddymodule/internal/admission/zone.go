package admission

import (
	"cmp"
	"sync"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/clock"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/inflight/fairqueue"
)

// A Zone holds the queues and slots of a zone. It outlives configs. Enforced and
// shadow requests of a zone have a Zone each. The zero value is ready for use. It
// is safe for concurrent use.
type Zone struct {
	// Name orders the zones in which a request takes slots. It must not change.
	Name string

	// Clock is the time that the zone goes by. If nil, it is the process's. It must not
	// change, and all zones of a request must have the same.
	Clock clock.Clock

	// Released, if not nil, is told each slot that was held by a turn. It is called
	// from any goroutine and must not change.
	Released func(t *Turn, held time.Duration)

	mu     sync.Mutex
	keys   map[string]*keyState
	all    fairqueue.Common // of all keys. Only those who take turns count in its mean.
	early  map[string]int   // requests that came too early for their turns, by key
	recent recent           // for how long slots were held lately in shadow
}

// Now returns the time that the zone goes by.
func (z *Zone) Now() time.Time { return clock.Now(z.Clock) }

// A keyState holds the queue and slots of a key. It exists while the key has requests
// beyond their delays.
type keyState struct {
	key    string
	slots  fairqueue.Queue  // and who waits for one
	limits fairqueue.Limits // as the last request or config has set them
	pace   pace             // of the upstream, in shadow
}

// keyStates are used again: most keys come and go with each request.
var keyStates = sync.Pool{New: func() any { return new(keyState) }}

// Counts returns how many requests wait, for their delay or for a slot, and how
// many hold one.
func (z *Zone) Counts() (waiting, served int) {
	z.mu.Lock()
	defer z.mu.Unlock()
	return z.all.Waiting, z.all.Running
}

// state finds or makes the state of a key.
func (z *Zone) state(key string) *keyState {
	k := z.keys[key]
	if k == nil {
		if z.keys == nil {
			z.keys = make(map[string]*keyState)
		}
		k = keyStates.Get().(*keyState)
		k.key = key
		k.slots.Common = &z.all
		z.keys[key] = k
	}
	return k
}

// forget drops the state of a key after its last request.
func (z *Zone) forget(k *keyState) {
	if k.pace.running == 0 && k.slots.Idle() {
		delete(z.keys, k.key)
		k.key = ""
		k.slots.Reset()
		k.pace, k.limits = pace{}, fairqueue.Limits{}
		keyStates.Put(k)
	}
}

// SetLimits changes the limits of all who wait for slots, as a new config does. Requests
// bring the limits of their config, too: these count until the next one comes.
func (z *Zone) SetLimits(inFlight int, maxWait time.Duration, maxWaiting int) {
	z.mu.Lock()
	defer z.mu.Unlock()
	for _, k := range z.keys {
		k.limits = fairqueue.Limits{InFlight: inFlight, MaxWait: maxWait, MaxWaiting: maxWaiting}
		z.advance(k)
	}
}

// arrive lets a request take its turn: it gets a slot, a place in its row, or is refused. If
// it waits, arrive returns its claim. A request that has waited before may be of an older
// config, so it brings no number of slots.
func (z *Zone) arrive(s *step, r *request, sleeper sleeper) (Why, *Turn) {
	z.mu.Lock()
	defer z.mu.Unlock()
	k := z.state(s.Key)
	defer z.advance(k) // the request may have brought more slots
	limits, waited := s.limits(), r.result.Waited > 0
	if waited {
		limits.InFlight = cmp.Or(k.limits.InFlight, limits.InFlight)
	}
	k.limits = limits
	k.slots.SetLimits(limits)
	c := s.turn()
	c.Decision = k.slots.Arrive(&c.Request)
	if d := c.Displaced; d != nil {
		c.Displaced = nil
		z.end(d.Owner.(*Turn), QueueFull)
	}
	switch c.Outcome {
	case fairqueue.Served:
		s.slot, c.key = c, k
		if c.since = r.came; !c.standIn && (waited || c.since.IsZero()) { // only turns are measured
			c.since = z.Now()
		}
		return Admitted, nil
	case fairqueue.Waiting:
		s.slot, c.key, c.Owner, c.waits, c.sleeper = c, k, c, true, sleeper
		if sleeper == nil {
			c.done = make(chan struct{})
		}
		c.timer = clock.AfterFunc(z.Clock, s.MaxWait, func() { z.stop(c, TimedOut) })
		return Admitted, c
	}
	defer c.free()
	return whyOf(c.Outcome), nil
}

// end ends the wait of a claim, and tells its request.
func (z *Zone) end(c *Turn, why Why) {
	c.waits, c.why = false, why
	c.timer.Stop()
	if why != Admitted {
		c.key = nil
	}
	if c.sleeper != nil {
		clock.AfterFunc(z.Clock, 0, c.sleeper.awake)
	} else {
		clock.Close(z.Clock, c.done)
	}
}

// stop ends the wait of a claim if it still waits.
func (z *Zone) stop(c *Turn, why Why) {
	z.mu.Lock()
	defer z.mu.Unlock()
	if k := c.key; c.waits {
		k.slots.Leave(&c.Request)
		z.end(c, why)
		z.advance(k)
	}
}

// enter gives a place to a request that waits for something else than a slot, if there is
// one. The key is that of a request that came too early for its turn, or empty.
func (z *Zone) enter(e *Entry, key string) bool {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.all.Waiting >= e.MaxWaiting || key != "" && z.early[key] >= e.limits().WaitingPerKey() {
		return false
	}
	z.all.Waiting++
	if key != "" {
		if z.early == nil {
			z.early = make(map[string]int)
		}
		z.early[key]++
	}
	return true
}

// leave gives that place back.
func (z *Zone) leave(key string) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.all.Waiting--
	if key != "" {
		z.early[key]--
	}
	if z.early[key] == 0 {
		delete(z.early, key)
	}
}

// Ask returns what would become of a request if it came now. Nothing is reserved: the slot
// may be gone at the next moment.
func (z *Zone) Ask(e *Entry) Why {
	z.mu.Lock()
	defer z.mu.Unlock()
	if e.Early > e.MaxWait {
		return TooLong
	} else if e.Early > 0 {
		return Admitted // by then, all may be different
	}
	k := z.keys[e.Key]
	if k == nil {
		return Admitted
	}
	k.slots.SetLimits(e.limits())
	t := e.turn()
	defer t.free()
	t.Decision = k.slots.Ask(&t.Request)
	return whyOf(t.Outcome)
}

// release gives back the slot of a request. If the request was not served, it is refunded,
// and does not count in the mean.
func (z *Zone) release(c *Turn, served bool) {
	if held := z.giveBack(c, served); held > 0 && z.Released != nil {
		z.Released(c, held)
	}
}

// giveBack returns for how long the request held its slot, if with a turn.
func (z *Zone) giveBack(c *Turn, served bool) (held time.Duration) {
	z.mu.Lock()
	defer z.mu.Unlock()
	k := c.key
	if k == nil {
		return 0
	}
	defer z.advance(k)
	defer c.free()
	c.key = nil
	if !c.standIn {
		held = cmp.Or(c.length, max(1, z.Now().Sub(c.since)))
	}
	counts := held
	if !served {
		counts = 0
	}
	k.slots.Release(&c.Request, counts)
	c.total.Store(int64(held))
	return held
}

// A Load is what a zone with slots has to do.
type Load struct {
	Running, Slots int
	Most           int // slots that one key holds
	Waiting        [fairqueue.Ranks]int
	Mean           time.Duration // that those who take turns hold a slot
}

// Load returns what the zone has to do. Slots are those of keys that have requests.
func (z *Zone) Load() (l Load) {
	z.mu.Lock()
	defer z.mu.Unlock()
	l.Running, l.Mean = z.all.Running, z.all.Mean.Duration()
	for _, k := range z.keys {
		l.Most = max(l.Most, k.slots.Running())
		l.Slots += k.limits.InFlight
		for rank := range l.Waiting {
			l.Waiting[rank] += k.slots.Waiting(fairqueue.Rank(rank))
		}
	}
	return l
}

// advance gives free slots of a key to those whose turn it is, and forgets the key after its
// last request. It is called after each change.
func (z *Zone) advance(k *keyState) {
	for k.slots.Len() > 0 {
		k.slots.SetLimits(k.limits)
		r := k.slots.Next()
		if r == nil {
			break
		}
		c := r.Owner.(*Turn)
		c.since = z.Now()
		z.end(c, Admitted)
	}
	z.forget(k)
}
