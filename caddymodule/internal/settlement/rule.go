// Package settlement finds out what a request really cost, once the response is known: an
// [Observer] stands between the next handler and the client, and the [Rule] of each zone
// reads the cost off it. Begin with [Observer].
package settlement

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/response"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// A Source says where a response tells its cost.
type Source uint8

// The sources.
const (
	Seconds Source = iota // the time until the response's headers
	Bytes                 // the size of the body that was sent
	Header                // a number in a response header or trailer
	Status                // a cost for some statuses and nothing for the others
)

var sources = []string{"seconds", "bytes", "header", "status"}

// String returns the source as configurations spell it.
func (s Source) String() string { return sources[s] }

// ParseSource reads a source as configurations spell it.
func ParseSource(text string) (Source, error) {
	if i := slices.Index(sources, text); i >= 0 {
		return Source(i), nil
	}
	return 0, fmt.Errorf("unknown source %q: want seconds, bytes <unit>, header <Name> or status <code|class>... <n>", text)
}

// A Rule says how the charges of one zone are settled. It does not change, so any
// number of requests may share it.
type Rule struct {
	// Source decides which of the fields below count.
	Source Source

	// Unit is the number of bytes that cost 1. Required for Bytes.
	Unit float64

	// Header is the canonical name of the header that says the cost. Required
	// for Header.
	Header string

	// Ranges are the statuses that cost Cost. Required for Status.
	Ranges []StatusRange
	Cost   float64

	// After says that nothing is reserved: requests are only asked whether they
	// would fit, and charged when the response is known.
	After bool

	// Debt is how far above the capacity a settlement may lift a bucket, in units.
	// If nil, it is one capacity.
	Debt *float64
}

// DebtUnder returns the debt of a bucket with a limit, in units. Without a rule there is none.
func (r *Rule) DebtUnder(limit leakybucket.Limit) float64 {
	switch {
	case r == nil:
		return 0
	case r.Debt != nil:
		return *r.Debt
	}
	return limit.Capacity
}

// A StatusRange is a range of statuses, both ends included.
type StatusRange struct{ First, Last int }

var statusCode = regexp.MustCompile(`^[1-5](xx|[0-9][0-9])$`)

// ParseStatus reads a status such as 401, or a class such as 4xx.
func ParseStatus(text string) (StatusRange, error) {
	first, _, cut := strings.Cut(strings.TrimRight(text, "*,;"), "-")
	switch {
	case statusCode.MatchString(text):
	case strings.HasSuffix(text, ",") && statusCode.MatchString(first):
		return StatusRange{}, fmt.Errorf("invalid status %q: want blanks between statuses", text)
	case cut && statusCode.MatchString(first) || len(first) == 1 && statusCode.MatchString(first+"xx"):
		return StatusRange{}, fmt.Errorf("invalid status %q: did you mean %sxx?", text, first[:1])
	default:
		return StatusRange{}, fmt.Errorf("invalid status %q: want a code such as 401 or a class such as 4xx", text)
	}
	from, _ := strconv.Atoi(strings.ReplaceAll(text, "x", "0"))
	to, _ := strconv.Atoi(strings.ReplaceAll(text, "x", "9"))
	return StatusRange{from, to}, nil
}

// Actual returns what a request cost in all, of which so much was reserved, when
// [Observer.Serve] has returned or panicked. The cost lies in the range of the limit's
// arithmetic. Clients that left before the answer was complete never
// pay less than the reservation.
//
// If the response does not say what it cost, known is false and the cost is the
// reservation.
func (r *Rule) Actual(o *Observer, limit leakybucket.Limit, reserved float64) (cost float64, known bool) {
	cost, known = r.measure(o, reserved)
	if !known {
		return reserved, false
	}
	if cost = limit.ClampCost(cost); o.Left() {
		cost = max(cost, reserved)
	}
	return cost, true
}

// counts reports whether a status costs something. The source must be Status.
func (r *Rule) counts(status int) bool {
	return slices.ContainsFunc(r.Ranges, func(s StatusRange) bool { return s.First <= status && status <= s.Last })
}

// measure returns what the response says, and false if it says nothing.
func (r *Rule) measure(o *Observer, reserved float64) (cost float64, known bool) {
	switch {
	case r.Source == Status:
		status := o.FinalStatus()
		if r.counts(status) {
			return r.Cost, true
		}
		return 0, status != 0
	case o.tunnel:
		return 0, false // a tunnel says nothing about the work that opened it
	case r.Source == Seconds && o.Status == 0:
		return max(o.elapsed.Seconds(), reserved), true
	case r.Source == Seconds:
		return o.headers.Seconds(), true
	case o.Status == 0 && (!o.returned || o.err != nil):
		return 0, false // an error route answers, after us
	case r.Source == Bytes:
		return float64(o.bytes) / r.Unit, true
	default:
		if i := o.Headers.index(r.Header); i >= 0 {
			return leakybucket.ParseCost(o.values[i])
		}
		return 0, false
	}
}

// FinalStatus returns the status that the client gets, or 0 if it is not known.
// The status of an error is sent by error routes, after us.
func (o *Observer) FinalStatus() int {
	switch {
	case o.Status != 0:
		return o.Status
	case !o.returned || o.tunnel:
		return 0 // nobody knows, or the handler wrote the status to the connection
	case o.err == nil:
		return http.StatusOK
	}
	return response.StatusOf(o.err)
}
