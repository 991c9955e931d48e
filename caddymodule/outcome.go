package caddymodule

import (
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// A decision is what became of a request in one zone; the stronger, the larger.
type decision uint8

const (
	admitted decision = iota
	shadowDelayed
	shadowRefused
	delayed
	refused
	decisions
)

func (d decision) String() string {
	return [decisions]string{"admitted", "shadow_delayed", "shadow_refused", "delayed", "refused"}[d]
}

// A reason says why a request was refused.
type reason uint8

const (
	none        reason = iota
	capacity           // the bucket would overflow
	blocking           // it did, and a block runs
	oversize           // the cost can never fit
	banned             // an override says deny
	missingKey         // the key is missing, and the zone refuses such requests
	unlistedKey        // no override names the key, and the zone refuses such requests
	waiting            // too many wait already, or the server is about to stop
	inFlight           // too many of the key's requests are being served
	earlyData          // the client's address is not verified yet
	noStore            // the store does not answer
	reasons
)

func (r reason) String() string {
	return [reasons]string{"", "capacity", "blocked", "oversize", "banned", "missing_key", "unlisted_key", "waiting", "in_flight", "early_data", "store"}[r]
}

// An outcome is what one zone decided about a request.
type outcome struct {
	zone     *Zone
	shadow   bool   // nobody is refused for it
	key      string // of the bucket, without the zone
	decision decision
	reason   reason

	limit   leakybucket.Limit
	cost    float64
	ceiling float64 // how high this request may fill the bucket, if that is less than the capacity
	level   float64 // of the bucket before the charge
	poured  float64 // the cost, or nothing

	at    leakybucket.Instant // of the decision, on the store's clock
	delay time.Duration       // how long the request waits, or would have to
	block time.Duration       // how long a block runs yet
	began bool                // that block, with this request

	jitter  float64 // how much longer to wait than need be, as a fraction
	settled bool    // the response has told
	paid    float64 // what it really cost
}

func refusal(shadow bool) decision {
	if shadow {
		return shadowRefused
	}
	return refused
}

// levelNow returns how full the bucket is after the decision.
func (o *outcome) levelNow() float64 {
	return o.level + o.poured
}

// settle notes what the request really cost, for the access log.
func (o *outcome) settle(cost float64) { o.settled, o.paid = true, cost }

// waits reports whether waiting helps at all.
func (o *outcome) waits() bool {
	switch o.reason {
	case capacity, blocking, waiting, inFlight, noStore:
		return true
	}
	return false
}

// retryAfter returns how long a refused client is told to wait.
func (o *outcome) retryAfter() time.Duration {
	wait := o.timeToFit()
	switch {
	case !o.waits():
		return 0
	case o.reason == inFlight || o.reason == noStore:
		return wait
	case o.zone.RetryAfter == retryEmpty && o.limit.Leak > 0:
		wait = max(wait, o.limit.TimeToEmpty(o.level))
	default:
		wait = max(wait, o.zone.retryFloor)
	}
	return wait + time.Duration(o.jitter*float64(wait))
}

// timeToFit returns how long a refused client has to wait.
func (o *outcome) timeToFit() time.Duration {
	switch {
	case !o.waits():
		return 0
	case o.reason == inFlight:
		return time.Second // nobody knows
	case o.reason == noStore:
		return comeBack
	case o.reason == waiting:
		return o.delay // then it need not wait here
	case o.limit.Leak == 0:
		return o.block
	}
	return max(o.block, o.limit.Below(o.ceiling).TimeToFit(o.level, o.cost))
}

// stronger reports whether o decides about the request rather than other: the
// stronger decision, of refusals the one that lasts longest, among equals the
// fullest bucket.
func (o *outcome) stronger(other *outcome) bool {
	if o.decision != other.decision {
		return o.decision > other.decision
	}
	if o.waits() != other.waits() {
		return other.waits()
	}
	if a, b := o.retryAfter(), other.retryAfter(); a != b {
		return a > b
	}
	return o.levelNow()*other.limit.Capacity > other.levelNow()*o.limit.Capacity
}
