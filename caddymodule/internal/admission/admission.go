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
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/clock"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/inflight/fairqueue"
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

	// Early, if not zero, is how long a request that takes turns must wait before it arrives
	// for its turn. It is refused if that is longer than MaxWait. With one key, the last one
	// of the turn, a tenth of MaxWaiting may wait so. Simulations do not look at it.
	Early time.Duration

	// Waited is set by Admit, whatever the result: how long the request waited in
	// this zone, for its delay or for a slot.
	Waited time.Duration
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
func whyOf(o fairqueue.Outcome) Why {
	return [...]Why{fairqueue.Served: Admitted, fairqueue.Waiting: Admitted, fairqueue.TooLong: TooLong, fairqueue.Full: QueueFull}[o]
}

// Why says how an admission ended.
type Why uint8

const (
	// Admitted means that the delay is over and all slots are taken.
	Admitted Why = iota
	// QueueFull means that MaxWaiting requests were waiting already.
	QueueFull
	// TimedOut means that no slot came free within MaxWait.
	TimedOut
	// TooLong means that the request would have to wait longer for its slot than it may,
	// or that none was free and it may not wait at all.
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

// A Turn is the claim of a request to a slot of a zone, and how it takes turns with others
// for that. It serves one admission. Set the fields of its [fairqueue.Request] before; its
// [fairqueue.Decision] tells afterwards what it met. The zone's lock guards the others.
type Turn struct {
	fairqueue.Request
	fairqueue.Decision // of when it arrived; see Met

	total atomic.Int64 // nanoseconds that it held its slot, once that is given back

	zone    *Zone     // nil before its admission
	standIn bool      // for a request that takes no turns: nobody else knows it
	waits   bool      // for its slot
	why     Why       // how the last wait has ended
	key     *keyState // from its arrival until it ends
	since   time.Time // it holds its slot

	// length is for how long a virtual slot is held, if that is known.
	length time.Duration

	// While it waits:
	timer   clock.Timer
	sleeper sleeper       // told when the wait is over; or nil, and
	done    chan struct{} // is closed then
}

// A step is what a request has to do in one zone.
type step struct {
	Entry
	index int   // of the entry
	slot  *Turn // its claim to a slot; nil before it is asked for, and after it is given back

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

// Met returns what the request met when it arrived, and zero if it has not yet. It may be
// called at any time: a simulated request may arrive when the real one is over.
func (t *Turn) Met() fairqueue.Decision {
	if t.zone != nil {
		t.zone.mu.Lock()
		defer t.zone.mu.Unlock()
	}
	return t.Decision
}

// Held returns for how long the request held its slot, and false until that is given
// back. It may be called at any time.
func (t *Turn) Held() (held time.Duration, over bool) {
	nanoseconds := t.total.Load()
	return time.Duration(nanoseconds), nanoseconds > 0
}
