package decision

import (
	"math"
	"net/http"
	"strconv"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/refusal"
)

// Announce sets the rate-limit headers of draft-ietf-httpapi-ratelimit-headers-10 for
// the enforced zone that is nearest exhaustion: its capacity, how much is left, and
// when there will be more. All are whole numbers, rounded so that a client that relies
// on them is not refused.
func (res *Result) Announce(header http.Header) {
	o := res.nearest()
	if o == nil {
		return
	}
	unit := ""
	if len(o.Zone.Cost.Lines) > 0 {
		unit = `;qu="cost"` // not every request costs 1
	}
	limit := o.Limit
	quota, window := int64(limit.Capacity), refusal.WholeSeconds(limit.TimeToEmpty(limit.Capacity))
	left := math.Floor(limit.Remaining(o.Level()))
	name := strconv.Quote(o.Zone.Name)
	header.Set("RateLimit-Policy", name+";q="+strconv.FormatInt(quota, 10)+unit+";w="+strconv.FormatInt(window, 10))
	field := name + ";r=" + strconv.FormatInt(int64(left), 10)
	if o.Level() > 0 {
		// Never later than Retry-After, which is what clients obey.
		more := limit.TimeToEmpty(o.Level() - max(0, limit.Capacity-left-1))
		if o.Reason().Waits() {
			more = min(max(more, o.Block), o.RetryAfter())
		}
		field += ";t=" + strconv.FormatInt(refusal.WholeSeconds(more), 10)
	}
	header.Set("RateLimit", field)
}

// nearest returns the outcome of the fullest enforced bucket whose key is not private,
// or nil if there is none.
func (res *Result) nearest() (nearest *Outcome) {
	res.each(func(o *Outcome) bool {
		if o.Limit.Capacity > 0 && o.Shadow == 0 && !o.Zone.Key.Private && (nearest == nil || o.fuller(nearest)) {
			nearest = o
		}
		return true
	})
	return nearest
}
