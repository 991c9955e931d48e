package settlement

import (
	"net/http"
	"slices"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/cookie"
)

// keptShare is the share of a refunded charge that is kept. So a line that also matches
// failures admits ten times as many of them, and not any number.
const keptShare = .1

// Refunds are the responses for which a zone gives most of a charge back, such as those to
// a log-in that succeeded. A response earns a refund if one of them matches.
type Refunds []Refund

// A Refund matches responses by one of its fields.
type Refund struct {
	Response *caddyhttp.ResponseMatcher
	Cookie   string // a pattern for the cookie that the response sets
}

// Match reports whether a response with this status and these headers earns a refund. A
// cookie counts only if the browser keeps it: log-outs and some failures delete it.
func (r Refunds) Match(status int, header http.Header, now time.Time) bool {
	return slices.ContainsFunc(r, func(one Refund) bool {
		if one.Response != nil {
			return one.Response.Match(status, header)
		}
		return cookie.Sets(one.Cookie, header["Set-Cookie"], now)
	})
}

// Actual returns what a request cost in all, of which so much was reserved, now that
// [Observer.Serve] has returned or panicked. It is the reservation if no response from within
// earns a refund, or not all of it was sent: because the upstream failed, the client left, or
// an error route answers.
func (r Refunds) Actual(o *Observer, reserved float64, now time.Time) float64 {
	complete := o.returned && o.err == nil || o.ended()
	if complete && !o.Left() && !o.tunnel && r.Match(o.FinalStatus(), o.own, now) {
		return reserved * keptShare
	}
	return reserved
}

// ownFields returns the fields of a header without those that it had before. A field that was
// set to what it was before is left out, too.
func ownFields(header, before http.Header) http.Header {
	own := make(http.Header, len(header))
	for name, values := range header {
		for old := before[name]; len(old) > 0 && len(values) > 0 && values[0] == old[0]; old = old[1:] {
			values = values[1:]
		}
		if len(values) > 0 {
			own[name] = slices.Clone(values)
		}
	}
	return own
}
