package admission

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/clock"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/fairqueue"
)

// A Turn is the claim of a request to a slot of a zone, and how it takes turns with others
// for that. It serves one admission. Set the fields of its [fairqueue.Request] before; its
// [fairqueue.Decision] tells afterwards what it met. The zone's lock guards the others.
type Turn struct {
	fairqueue.Request
	fairqueue.Decision // of when it arrived

	total atomic.Int64 // nanoseconds that it held its slot, once that is given back

	standIn bool          // for a request that takes no turns: nobody else knows it
	key     *keyState     // from its arrival until it ends
	since   time.Time     // it holds its slot
	held    time.Duration // before it gave the slot up for a while

	// length is for how long a virtual slot is held, if that is known.
	length time.Duration

	// While it waits:
	waits   bool
	timer   clock.Timer
	sleeper sleeper       // told when the wait is over; or nil, and
	done    chan struct{} // is closed then
	why     Why           // how the last wait has ended
}

// A step is what a request has to do in one zone.
type step struct {
	Entry
	index int   // of the entry
	slot  *Turn // its claim to a slot; nil before it is asked for, and after it is given back

	until time.Time // it waits for the slot; zero before

	virtual *virtualSlot // of a simulated request that takes turns, once it has begun
}

// A sleeper is a simulation that waits.
type sleeper interface{ awake() }

// standIns are the turns of requests that take none, and so go by the order of arrival. They
// are used again: most slots are free when they are wanted.
var standIns = sync.Pool{New: func() any { return &Turn{standIn: true} }}

// turn returns the turn of an entry, or what stands in for it.
func (e *Entry) turn() *Turn {
	if e.Turn != nil {
		return e.Turn
	}
	t := standIns.Get().(*Turn)
	t.Rank = fairqueue.First
	return t
}

// free lets a stand-in be used again of which nobody else knows, since it has never waited.
func (t *Turn) free() {
	if t.standIn && t.Owner == nil {
		*t = Turn{standIn: true}
		standIns.Put(t)
	}
}

// Held returns for how long the request held its slot, and false until that is given
// back. It may be called at any time.
func (t *Turn) Held() (held time.Duration, over bool) {
	nanoseconds := t.total.Load()
	return time.Duration(nanoseconds), nanoseconds > 0
}

// limits are those that an entry sets. Requests that wait in the order of arrival are not
// refused by a prediction.
func (e *Entry) limits() fairqueue.Limits {
	l := fairqueue.Limits{InFlight: e.InFlight, MaxWait: e.MaxWait, MaxWaiting: e.MaxWaiting}
	if e.Turn == nil && e.MaxWait > 0 {
		l.MaxWait = math.MaxInt64
	}
	return l
}

// whyOf returns how an admission ends at once, or Admitted.
func (e *Entry) whyOf(o fairqueue.Outcome) Why {
	if o == fairqueue.TooLong && e.Turn == nil { // it may not wait at all
		return NoSlot
	}
	return [...]Why{fairqueue.Served: Admitted, fairqueue.Waiting: Admitted, fairqueue.TooLong: TooLong, fairqueue.Full: QueueFull}[o]
}
