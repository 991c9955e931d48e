package rule

import (
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/refusal"
)

// A Reason is why a request was refused.
type Reason uint8

// The reasons.
const (
	None        Reason = iota
	Capacity           // the bucket would overflow, or the delay be longer than its bound
	Blocked            // the key is blocked
	Oversize           // the cost can never fit
	Denied             // an override denies the key
	MissingKey         // the key is missing, and the zone refuses such requests
	UnlistedKey        // no override names the key, and the zone refuses such requests
	QueueFull          // too many requests wait already, or the server is about to stop
	InFlight           // all slots of the key are taken
	EarlyData          // the client's address is not verified yet
	NoStore            // the store does not answer, and the zone denies
	Banned             // an administrator has banned the client's network
	TurnTooLate        // the request's turn would come too late
	Timeout            // the request's turn has not come in time
	NoMemory           // there was no memory to read the body, and the request counts as one unread
	Error              // a matcher of the zone failed, and the request with it
	Reasons            // how many there are
)

func (r Reason) String() string {
	return [Reasons]string{"", "capacity", "blocked", "oversize", "denied", "missing_key", "unlisted_key", "waiting", "in_flight", "early_data", "store", "banned", "wait", "timeout", "memory", "error"}[r]
}

// Waits reports whether waiting helps a client that was refused for this reason.
func (r Reason) Waits() bool {
	switch r {
	case Capacity, Blocked, QueueFull, InFlight, NoStore, Banned, TurnTooLate, Timeout, NoMemory:
		return true
	}
	return false
}

// A ReasonSet is a set of reasons.
type ReasonSet uint32

// With returns the set with more reasons.
func (s ReasonSet) With(why ...Reason) ReasonSet {
	for _, r := range why {
		s |= 1 << r
	}
	return s
}

// Has reports whether a reason is in the set.
func (s ReasonSet) Has(why Reason) bool { return s>>why&1 != 0 }

// A Refusal is what clients get that a zone refuses.
type Refusal struct {
	Status  int
	Message string        // to people; may be empty
	Page    *refusal.Page // nil means the built-in page
	AsError bool          // the site's error routes answer instead

	RetryEmpty  bool          // Retry-After says the time to empty
	RetryFloor  time.Duration // the least that Retry-After says
	RetryJitter float64       // the most that is added, as a fraction of the wait

	ZoneHeader  bool // name the zone in a header
	SupportCode bool // have a code that visitors may tell
}
