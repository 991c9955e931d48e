package limit

import (
	"cmp"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"golang.org/x/net/http/httpguts"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/option"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/response"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// Settle corrects a charge once the response is known. The cost at the request is
// then a reservation. Each request is corrected exactly once, and disconnecting
// early never earns a refund.
type Settle struct {
	// The real cost of a request. Required. `seconds` is the time until the
	// upstream's headers, without that in the queue of in_flight. `bytes` is the
	// size of the response body, and `header` a number that the upstream sends.
	// `status` is a cost for some statuses, and nothing for others.
	Source SettleSource `json:"source,omitempty"`

	// The number of bytes that cost 1, such as `1MiB`. Required for `bytes`.
	Unit string `json:"unit,omitempty"`

	// The response header with the cost. Clients never see it. Required for
	// `header`.
	Name string `json:"name,omitempty"`

	// The statuses that cost something, such as `401` or `4xx`. Required for
	// `status`.
	Status []string `json:"status,omitempty"`

	// The cost of these statuses. Required for `status`.
	Cost float64 `json:"cost,omitempty"`

	// Reserve nothing: the request only asks whether it would fit, and the
	// response is charged. Default: the cost is reserved. Requests already in
	// flight when the bucket fills are still served, so short overshoots are
	// possible. Use it for 404s, and for HTTP Basic, with block.
	After bool `json:"after,omitempty"`

	// How far above the capacity a correction may lift the level, in units.
	// Default: the capacity. With 0, corrections stop at the capacity, so a heavy
	// request pays no more than a light one into a full bucket.
	Debt *float64 `json:"debt,omitempty"`

	bytes float64 // the same as Unit
	codes []int   // the same as Status, as [caddyhttp.StatusCodeMatches] takes them
}

// A SettleSource says where a response tells its cost.
type SettleSource string

// The sources.
const (
	BySeconds SettleSource = "seconds" // the time until the response's headers
	ByBytes   SettleSource = "bytes"   // the size of the body that was sent
	ByHeader  SettleSource = "header"  // a number in a response header or trailer
	ByStatus  SettleSource = "status"  // a cost for some statuses and nothing for the others
)

// compile compiles the correction of charges. It comes after the limit and the costs.
func (s *Settle) compile(z *Zone) error {
	if s == nil {
		return nil
	}
	if err := s.compileSource(); err != nil {
		return option.About("settle", 0, fmt.Errorf("parsing settle: %w", err))
	}
	return cmp.Or(
		option.About("settle debt", 0, z.Limit.ValidateDebt(s.debtUnder(z.Limit))),
		option.Refuse("cost", !s.After && slices.Contains(z.constants(), 0), "cost 0 reserves nothing, so any number of requests pass before the first is settled: want a cost, or settle ... after"),
	)
}

// compileSource checks the source and its fields.
func (s *Settle) compileSource() error {
	if !slices.Contains([]SettleSource{BySeconds, ByBytes, ByHeader, ByStatus}, s.Source) {
		return fmt.Errorf("unknown source %q: want seconds, bytes <unit>, header <Name> or status <code|class>... <n>", s.Source)
	}
	bytes, header, status := s.Source == ByBytes, s.Source == ByHeader, s.Source == ByStatus
	mixed := (s.Unit != "") != bytes || (s.Name != "") != header || (len(s.Status) > 0) != status || (s.Cost != 0) != status
	err := cmp.Or(
		option.Refuse("settle", mixed, "a word is missing or is that of another source: want settle seconds, bytes <unit>, header <Name> or status <code|class>... <n>"),
		option.Refuse("settle", header && !httpguts.ValidHeaderFieldName(s.Name), "invalid header name %q: want letters, digits and hyphens, such as X-Cost", s.Name),
		option.Refuse("settle", status && !(s.Cost > 0 && s.Cost <= 1e12), "invalid cost %v: want a number above 0", s.Cost),
	)
	if err == nil && bytes {
		s.bytes, err = option.ParseUnit(s.Unit)
	}
	for _, code := range s.Status {
		statuses, wrong := parseStatus(code)
		s.codes, err = append(s.codes, statuses), cmp.Or(err, wrong)
	}
	return err
}

// debtUnder returns the debt of a bucket with a limit, in units.
func (s *Settle) debtUnder(limit leakybucket.Limit) float64 {
	if s.Debt != nil {
		return *s.Debt
	}
	return limit.Capacity
}

var statusCode = regexp.MustCompile(`^[1-5](xx|[0-9][0-9])$`)

// parseStatus reads a status such as 401, or a class such as 4xx, which is 4.
func parseStatus(text string) (int, error) {
	if statusCode.MatchString(text) {
		return strconv.Atoi(strings.TrimSuffix(text, "xx"))
	}
	return 0, fmt.Errorf("invalid status %q: want a code such as 401 or a class such as 4xx", text)
}

// Actual returns what a request cost in all, of which so much was reserved, when
// [Observer.Serve] has returned or panicked. The cost lies in the range of the limit's
// arithmetic. Clients that left before the answer was complete never
// pay less than the reservation.
//
// If the response does not say what it cost, known is false and the cost is the
// reservation.
func (s *Settle) Actual(o *Observer, limit leakybucket.Limit, reserved float64) (cost float64, known bool) {
	cost, known = s.measure(o, reserved)
	if !known {
		return reserved, false
	}
	if cost = limit.ClampCost(cost); o.Left() {
		cost = max(cost, reserved)
	}
	return cost, true
}

// measure returns what the response says, and false if it says nothing.
func (s *Settle) measure(o *Observer, reserved float64) (cost float64, known bool) {
	erred := o.Status == 0 && (!o.returned || o.err != nil) // an error route answers, after us
	switch {
	case s.Source == ByStatus:
		status := o.FinalStatus()
		if slices.ContainsFunc(s.codes, func(code int) bool { return caddyhttp.StatusCodeMatches(status, code) }) {
			return s.Cost, true
		}
		return 0, status != 0
	case o.tunnel:
		return 0, false // a tunnel says nothing about the work that opened it
	case s.Source == BySeconds && erred:
		return max(o.took.Seconds(), reserved), true
	case s.Source == BySeconds:
		return o.took.Seconds(), true
	case erred:
		return 0, false
	case s.Source == ByBytes:
		return float64(o.bytes) / s.bytes, true
	}
	if i := slices.Index(o.Headers, s.Name); i >= 0 {
		return leakybucket.ParseCost(o.values[i])
	}
	return 0, false // a replay has no headers
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

// Awaits reports whether a zone has to learn from the response to a request that was let in.
func (v *Verdict) Awaits() bool {
	for o := range v.all {
		if o.settles() || len(o.Zone.Refund) > 0 {
			return true
		}
	}
	return len(v.due) > 0
}

// Answered finds out, before the headers of a response are sent to a client that is still there, in which
// zones it earns a refund, and adds the device cookies that it has earned. own are the fields of the
// header that come from within.
func (v *Verdict) Answered(now time.Time, status int, own, header http.Header) {
	for o := range v.all {
		if o.earned = o.Zone.Refund.Match(status, own, now); !o.earned || o.device == nil {
			continue
		}
		earned, another := o.device.Earned(own, now)
		if o.earned = !another; earned && o.device.Issue(header, now) {
			o.Zone.Reporter.Count(CountDevice)
		}
	}
}

// GiveBack returns the settlements that give back all that was poured, for a request that costs
// nothing. One that left while it waited is cancelled: if other requests have queued behind it, its
// place stays empty. One that was refused further in has had its place, and so much has leaked
// before that which others had poured.
func (v *Verdict) GiveBack(waited bool) (due []leakybucket.Settlement) {
	due = append(due, v.due...)
	for i := range v.Outcomes {
		if o := &v.Outcomes[i]; o.Answer.Poured {
			o.settled, o.settledCost = true, 0
			back := o.givenBack()
			if waited && back.Cancel {
				back.Cancel, back.Was.At = false, back.Was.At.Add(o.Charge.Delay(&o.Answer))
			}
			due = append(due, back)
		}
	}
	return due
}

// givenBack gives back all that a charge has poured. A place in a queue is cancelled.
func (o *Outcome) givenBack() leakybucket.Settlement {
	return leakybucket.Settlement{Charge: o.Charge, Was: o.Answer, Diff: -o.Cost, Cancel: o.Zone.Delay != nil}
}

func (o *Outcome) settles() bool {
	return (o.Zone.Settle != nil || len(o.Zone.Refund) > 0 && o.Answer.Poured) && o.asked && o.reason == None
}

// Settle returns the settlements that correct the charges to what the request really
// cost. It is called before the headers are sent, for what is known to cost more than was reserved, and at
// the end: a client that never reads the rest of its answers must not keep them from being charged.
func (v *Verdict) Settle(observer *Observer, beforeHeaders bool) (due []leakybucket.Settlement) {
	due = observer.due[:0]
	for o := range v.all {
		if !o.settles() || o.settled {
			continue
		}
		reserved := 0.0
		if o.Answer.Poured {
			reserved = o.Cost
		}
		cost, known, refunded := reserved, true, o.earned
		switch {
		case o.Zone.Settle != nil:
			cost, known = o.Zone.Settle.Actual(observer, o.Limit, reserved)
			refunded = cost == 0
		case refunded:
			cost *= keptShare
		}
		diff := cost - reserved
		if beforeHeaders && diff <= 0 {
			continue
		}
		o.Zone.Reporter.Settled(observer.FinalStatus(), refunded, known)
		o.settledCost, o.settled = cost, true
		if diff != 0 {
			due = append(due, leakybucket.Settlement{Charge: o.Charge, Was: o.Answer, Diff: diff})
		}
	}
	if !beforeHeaders || len(due) > 0 {
		due, v.due = append(due, v.due...), nil
	}
	return due
}
