package caddymodule

import (
	"errors"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// Words of refusal log.
const (
	logAll = "all"
	logOff = "off"
)

// parseLogRefused returns the interval between refusals in the access log. Zero means
// that all are logged, a negative interval that none is.
func parseLogRefused(text string) (every time.Duration, err error) {
	switch text {
	case logAll:
		return 0, nil
	case logOff:
		return -1, nil
	}
	rate, err := leakybucket.ParseRate(text)
	if err != nil || rate <= 0 {
		return 0, errors.New("invalid log " + strconv.Quote(text) + ": want all, off or a rate such as 10/s")
	}
	return max(1, time.Duration(float64(time.Second)/rate)), nil
}

// refusedLines limits how many refusals of a zone are in the access log. The zero value
// is ready for use.
type refusedLines struct {
	due     atomic.Int64  // when the next line is due if lines come evenly, in nanoseconds since 1970
	dropped atomic.Uint32 // lines since one of the zone was written
}

// allows reports whether a line may be written now. A burst is the lines of a second, or
// one.
func (l *refusedLines) allows(now time.Time, every time.Duration) bool {
	if every < 0 {
		return false
	}
	burst := max(int64(time.Second), int64(every))
	for at := now.UnixNano(); ; {
		due := l.due.Load()
		next := max(due, at) + int64(every)
		if due > at+2*burst { // by another rate, or before the clock was set back
			next = at + int64(every)
		}
		if next-at > burst {
			return false
		}
		if l.due.CompareAndSwap(due, next) {
			return true
		}
	}
}

// limitLog keeps the line of a refused request out of the access log if refusal log of
// the decisive zone says so. Lines that are written tell how many were not.
func (h *Handler) limitLog(r *http.Request, res *decision.Result, now time.Time) {
	if !h.app.limitsLog || !decision.Logged(r, h.server) {
		return
	}
	if res.Refused() {
		z := h.app.zones[res.Decisive().Rule.Name]
		if z.logEvery != 0 && !z.live.lines.allows(now, z.logEvery) {
			z.live.lines.dropped.Add(1)
			caddyhttp.SetVar(r.Context(), caddyhttp.LogSkipVar, true)
			return
		}
	}
	for i := range res.Outcomes {
		o := &res.Outcomes[i]
		if z := h.app.zones[o.Rule.Name]; z.logEvery != 0 && o.Decision() != decision.Withdrawn && z.live.lines.dropped.Load() > 0 {
			o.Unlogged = z.live.lines.dropped.Swap(0)
		}
	}
}
