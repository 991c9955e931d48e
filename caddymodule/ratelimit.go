package caddymodule

import (
	"encoding/json"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// announce sets the header fields of draft-ietf-httpapi-ratelimit-headers-10,
// for the enforced zone that is nearest exhaustion: what it holds, how much is
// left, and when there will be more. All are whole numbers, rounded so that a
// client that goes by them is not refused.
func (p *passage) announce(header http.Header) {
	o := p.nearest()
	if o == nil {
		return
	}
	unit := ""
	if len(o.zone.Cost) > 0 {
		unit = `;qu="cost"` // not every request costs 1
	}
	quota, window := int64(o.limit.Capacity), wholeSeconds(o.limit.TimeToEmpty(o.limit.Capacity))
	left := math.Floor(o.limit.Remaining(o.levelNow()))
	name := strconv.Quote(o.zone.Name)
	header.Set("RateLimit-Policy", name+";q="+strconv.FormatInt(quota, 10)+unit+";w="+strconv.FormatInt(window, 10))
	field := name + ";r=" + strconv.FormatInt(int64(left), 10)
	if o.levelNow() > 0 {
		// Never later than Retry-After, which is what clients obey.
		more := o.limit.TimeToEmpty(o.levelNow() - max(0, o.limit.Capacity-left-1))
		if o.waits() {
			more = min(more, o.retryAfter())
		}
		field += ";t=" + strconv.FormatInt(wholeSeconds(more), 10)
	}
	header.Set("RateLimit", field)
}

// nearest returns the outcome of the enforced zone of which least is left.
func (p *passage) nearest() (nearest *outcome) {
	for i := range p.outcomes {
		o := &p.outcomes[i]
		if o.decision == shadowRefused || o.limit.Capacity == 0 || o.shadow {
			continue
		}
		if nearest == nil || o.levelNow()*nearest.limit.Capacity > nearest.levelNow()*o.limit.Capacity {
			nearest = o
		}
	}
	return nearest
}

// prefersJSON reports whether the client takes JSON and does not take HTML.
func prefersJSON(r *http.Request) bool {
	takesJSON := false
	for _, header := range r.Header["Accept"] {
		for kind := range strings.SplitSeq(header, ",") {
			kind, _, _ = strings.Cut(kind, ";")
			switch kind = strings.ToLower(strings.TrimSpace(kind)); {
			case kind == "text/html", kind == "application/xhtml+xml", kind == "text/*", kind == "*/*":
				return false
			case kind == "application/json", strings.HasSuffix(kind, "+json"):
				takesJSON = true
			}
		}
	}
	return takesJSON
}

// problem is a body of application/problem+json (RFC 9457), of the types that
// the draft above registers.
func (p *passage) problem(status int) []byte {
	body := struct {
		Type       string   `json:"type"`
		Title      string   `json:"title"`
		Status     int      `json:"status"`
		Detail     string   `json:"detail,omitempty"`
		Violations []string `json:"violated-policies,omitempty"`
	}{Type: "about:blank", Title: http.StatusText(status), Status: status}
	if o := p.decisive(); o.waits() {
		body.Detail = "It fits in " + string(appendReadable(nil, o.timeToFit().Round(time.Millisecond))) + "."
		if status == http.StatusTooManyRequests {
			body.Type = "https://iana.org/assignments/http-problem-types#quota-exceeded"
		}
		for i := range p.outcomes {
			if p.outcomes[i].decision == refused {
				body.Violations = append(body.Violations, p.outcomes[i].zone.Name)
			}
		}
	}
	raw, _ := json.Marshal(body) // of strings and a number
	return append(raw, '\n')
}
