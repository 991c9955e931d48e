package limit

import (
	"cmp"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/refusal"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/supportcode"
)

// Refusal returns the refusal of a request, as the decisive zone configures it. If
// that wants a support code, the refusal is remembered in a ring.
func (v *Verdict) Refusal(r *http.Request, ring *supportcode.Ring, now time.Time) refusal.Refusal {
	o := v.Decisive()
	is := o.Zone.Refusal
	f := refusal.Refusal{
		Status: is.Status, Waits: o.reason.Waits(), RetryAfter: o.RetryAfter(), TimeToFit: o.TimeToFit(),
		Message: is.Message, Page: is.Page, AsError: is.Error,
		LogIns: len(o.Zone.Refund) > 0 && (o.reason == Capacity || o.reason == Blocked),
		Banned: o.reason == Banned,
	}
	if is.Code == "" {
		f.Code = ring.Add(supportcode.Refusal{
			At: now, Client: ClientOf(r), Zone: o.Zone.Name, Key: o.Key, Reason: o.reason.String(), Wait: f.TimeToFit.Seconds(), Blocked: o.Block.Seconds(),
			Cost: o.Cost, Level: o.Level(), Capacity: o.Limit.Capacity,
		})
		o.code = f.Code
	}
	switch {
	case o.exiting, o.reason == NoStore:
		f.Status = http.StatusServiceUnavailable
	case o.reason == Connect:
		f.Status, f.AsError = http.StatusNotImplemented, false // an error route may hand it on, with its body
	case o.reason == EarlyData:
		f.Status = http.StatusTooEarly // browsers send it again by themselves
	}
	return f
}

// outageWait is the Retry-After of clients that were refused without a store. Most outages are
// over in seconds.
const outageWait = 5 * time.Second

// RetryAfter returns how long a refused client is told to wait. Zero means that
// waiting does not help.
func (o *Outcome) RetryAfter() time.Duration {
	wait := o.TimeToFit()
	switch why := o.reason; {
	case !why.Waits(), why == NoStore:
		return wait // which is 0 where waiting does not help
	case o.Zone.Refusal.SaysEmpty() && o.Limit.Leak > 0:
		return max(wait, o.Limit.TimeToEmpty(o.Answer.Level))
	}
	return max(wait, o.Zone.Refusal.RetryFloor)
}

// TimeToFit returns how long a refused client must wait. Zero means that waiting does
// not help.
func (o *Outcome) TimeToFit() time.Duration {
	switch o.reason {
	case Capacity, Blocked, Banned, NoMemory:
		if o.Limit.Leak > 0 { // a ban has no limit
			return max(o.Block, o.Limit.WithCeiling(o.Ceiling).TimeToFit(o.Answer.Level, o.Cost))
		}
		return o.Block
	case NoStore:
		return outageWait
	case QueueFull:
		return o.Delay // by then, the queue ahead has leaked
	}
	return 0
}

// stronger reports whether o, rather than other, decides about the request. The
// stronger decision wins, then the refusal that lasts longest, which people are told, then
// the one with the longest Retry-After, then the fuller bucket.
func (o *Outcome) stronger(other *Outcome) bool {
	if a, b := o.decision, other.decision; a != b {
		return a > b
	}
	if a, b := o.reason.Waits(), other.reason.Waits(); a != b {
		return b
	}
	if lasts := cmp.Or(cmp.Compare(o.TimeToFit(), other.TimeToFit()), cmp.Compare(o.RetryAfter(), other.RetryAfter())); lasts != 0 {
		return lasts > 0
	}
	return o.fuller(other)
}

// fuller reports whether the bucket of o is fuller than that of other. It does not
// divide: what was refused without asking the store has a capacity of 0 and counts as empty.
func (o *Outcome) fuller(other *Outcome) bool {
	return o.Level()*other.Limit.Capacity > other.Level()*o.Limit.Capacity
}

// Announce sets the rate-limit headers of draft-ietf-httpapi-ratelimit-headers-10 for
// the enforced zone that is nearest exhaustion: its capacity, how much is left, and
// when there will be more. All are whole numbers, rounded so that a client that relies
// on them is not refused.
func (v *Verdict) Announce(header http.Header) {
	o := v.nearest()
	if o == nil {
		return
	}
	unit := ""
	if len(o.Zone.Cost) > 0 {
		unit = `;qu="cost"` // not every request costs 1
	}
	limit := o.Limit.WithCeiling(o.Ceiling)
	window := refusal.WholeSeconds(limit.TimeToEmpty(limit.Capacity))
	left := math.Floor(limit.Remaining(o.Level()))
	more := limit.TimeToEmpty(o.Level() - max(0, limit.Capacity-left-1))
	if o.Block > 0 || o.reason == QueueFull { // whatever has leaked
		left, more = 0, o.TimeToFit()
	} else if o.reason.Waits() { // never later than Retry-After, which is what clients obey
		more = min(more, o.RetryAfter())
	}
	name := strconv.Quote(o.Zone.Name)
	header.Add("RateLimit-Policy", name+";q="+strconv.FormatInt(int64(limit.Capacity), 10)+unit+";w="+strconv.FormatInt(window, 10))
	field := name + ";r=" + strconv.FormatInt(int64(left), 10)
	if more > 0 {
		field += ";t=" + strconv.FormatInt(refusal.WholeSeconds(more), 10)
	}
	header.Add("RateLimit", field)
}

// nearest returns the outcome of the fullest enforced bucket that is known and whose key is not
// private, or nil if there is none.
func (v *Verdict) nearest() (nearest *Outcome) {
	for o := range v.all {
		if o.Limit.Capacity > 0 && !o.Answer.Undecided && !o.Shadow && !o.Zone.Key.private() && (nearest == nil || o.fuller(nearest)) {
			nearest = o
		}
	}
	return nearest
}
