package admission

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/clock"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/fairqueue"
)

// A claim is that of a request to a slot of a zone. Without a Turn it has no keys, so that it
// goes by the order of arrival. The zone's lock guards it.
type claim struct {
	fairqueue.Request

	turn  *Turn         // nil if it takes no turns
	key   *keyState     // from its arrival until it ends
	since time.Time     // it holds its slot
	held  time.Duration // before it gave the slot up for a while

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
	index int    // of the entry
	slot  *claim // to a slot; nil before it is asked for, and after it is given back

	until time.Time // it waits for the slot; zero before

	virtual *virtualSlot // of a simulated request that takes turns, once it has begun
}

// A sleeper is a simulation that waits.
type sleeper interface{ awake() }

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

// claims without turns are used again: most slots are free when they are wanted.
var claims = sync.Pool{New: func() any { return new(claim) }}

// newClaim returns the claim of a turn, or of a request without one.
func newClaim(t *Turn) *claim {
	if t != nil {
		t.turn = t
		return &t.claim
	}
	c := claims.Get().(*claim)
	c.Rank = fairqueue.First
	return c
}

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

// whyOf returns how an admission ends at once, or Admitted.
func (e *Entry) whyOf(o fairqueue.Outcome) Why {
	if o == fairqueue.TooLong && e.Turn == nil { // it may not wait at all
		return NoSlot
	}
	return [...]Why{fairqueue.Served: Admitted, fairqueue.Waiting: Admitted, fairqueue.TooLong: TooLong, fairqueue.Full: QueueFull}[o]
}
