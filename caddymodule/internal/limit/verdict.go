package limit

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/body"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/record"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/refusal"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// A Verdict is what the zones of one handler have decided about a request. Zones that count as
// if they had not been asked have no outcome.
type Verdict struct {
	Outcomes []Outcome
	static   []exemption              // the zones that exempt the request as a static file
	due      []leakybucket.Settlement // corrections that do not depend on the response
	body     *body.Received           // of the request, if the handler has received it
	room     Verdicts                 // those of the request, if this is its first
}

// newVerdict returns a verdict with room for n outcomes: for most requests, one allocation.
func newVerdict(n int) *Verdict {
	switch {
	case n == 1:
		one := new(struct {
			Verdict
			outcomes [1]Outcome
		})
		one.Outcomes = one.outcomes[:0]
		return &one.Verdict
	case n == 2, n == 3:
		some := new(struct {
			Verdict
			outcomes [3]Outcome
		})
		some.Outcomes = some.outcomes[:0]
		return &some.Verdict
	}
	return &Verdict{Outcomes: make([]Outcome, 0, n)}
}

// Close gives back what is held of the request's body, once the request has been served. If that
// ended with an error, an error route may read the body until the client has its answer.
func (v *Verdict) Close(r *http.Request, err error) {
	switch {
	case v.body == nil:
	case err != nil:
		context.AfterFunc(record.ClientOf(r), func() { _ = v.body.Close() })
	default:
		_ = v.body.Close()
	}
}

// Report calls the zones' Reporters with all outcomes, which are final now, and with the
// header of the response. It also keeps the request out of the access log, if a zone wants
// that of this refusal, and announces the limits in the header.
func (v *Verdict) Report(r *http.Request, d *Directive, now time.Time, header http.Header) {
	if v.Refused() && d.Server.logs(r) && !v.Decisive().Zone.Reporter.Logs(now) {
		caddyhttp.SetVar(r.Context(), caddyhttp.LogSkipVar, true)
	}
	for i := range v.Outcomes {
		v.Outcomes[i].report(r, now, header)
	}
	if d.Announces {
		v.announce(header)
	}
}

// report calls the zone's Reporter with a final outcome. It must be called once.
func (o *Outcome) report(r *http.Request, now time.Time, header http.Header) {
	if o.decision != Skipped {
		o.Zone.Reporter.Decided(o, r, now, header)
	}
}

// Refused reports whether an enforced zone refuses the request.
func (v *Verdict) Refused() bool {
	for i := range v.Outcomes { // without a copy of each
		if v.Outcomes[i].decision == Refused {
			return true
		}
	}
	return false
}

// Overflows reports whether a zone refuses the request, or would without shadow.
func (v *Verdict) Overflows() bool {
	for i := range v.Outcomes {
		if v.Outcomes[i].reason != None {
			return true
		}
	}
	return false
}

// Decisive returns the strongest outcome, or nil if there is none.
func (v *Verdict) Decisive() *Outcome { return strongest(v.all) }

// all iterates over the outcomes that were not skipped since.
func (v *Verdict) all(yield func(*Outcome) bool) {
	for i := range v.Outcomes {
		if o := &v.Outcomes[i]; o.decision != Skipped && !yield(o) {
			return
		}
	}
}

// note notes in the request's record which zones have decided.
func (v *Verdict) note(r *http.Request) {
	noted := record.Of(r)
	for i := range v.Outcomes {
		noted.Charge(v.Outcomes[i].Zone.Name)
	}
	for i := range v.static {
		noted.Charge(v.static[i].zone.Name)
	}
}

// Verdicts are those of all handlers that a request has passed. A nil one is of none.
type Verdicts struct {
	all  []*Verdict
	room [1]*Verdict
}

// verdictsVar is the variable with the verdicts. No user would choose its name.
const verdictsVar = "throttle.verdicts"

// VerdictsOf returns the verdicts about a request, as far as somebody may read them.
func VerdictsOf(ctx context.Context) *Verdicts {
	all, _ := caddyhttp.GetVar(ctx, verdictsVar).(*Verdicts)
	return all
}

// publish shows the verdict to later handlers, placeholders and the access log. The last two
// compute values only when they are read.
func (v *Verdict) publish(a *asking) {
	logs := a.Server.logs(a.Request)
	if !logs && !a.Server.shown() || a.Vars == nil {
		return
	}
	alone := !a.Server.shown() && !a.Server.Shares() // then only the log reads it
	var all *Verdicts
	if !alone {
		all, _ = a.Vars[verdictsVar].(*Verdicts)
	}
	if all == nil {
		all = &v.room
		all.all = all.room[:0]
		if !alone {
			a.Vars[verdictsVar] = all
		}
		if a.Server.shown() && a.Replacer() != nil {
			a.Replacer().Map(placeholdersOf(a.Request.Context()))
		}
		if logs {
			if extra, ok := a.Request.Context().Value(caddyhttp.ExtraLogFieldsCtxKey).(*caddyhttp.ExtraLogFields); ok {
				extra.Add(zap.Inline(all))
			}
		}
	}
	all.all = append(all.all, v)
}

// logs reports whether the request will be in an access log, as far as is known.
func (s *Server) logs(r *http.Request) bool {
	ctx := r.Context()
	var server *caddyhttp.Server
	if s != nil {
		server = s.Server
	} else {
		server, _ = ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	}
	if server == nil || server.Logs == nil {
		return false
	}
	skipped, _ := caddyhttp.GetVar(ctx, caddyhttp.LogSkipVar).(bool)
	return !skipped
}

// outcomes iterates over the outcomes of all handlers.
func (all *Verdicts) outcomes(yield func(*Outcome) bool) {
	if all == nil {
		return
	}
	for _, v := range all.all {
		for o := range v.all {
			if !yield(o) {
				return
			}
		}
	}
}

// Decisive returns the strongest outcome of the request, or nil if there is none.
func (all *Verdicts) Decisive() *Outcome { return strongest(all.outcomes) }

// Blocked reports whether an enforced zone of this name has found the client blocked.
// An empty name means any zone.
func (all *Verdicts) Blocked(zone string) bool {
	for o := range all.outcomes {
		if o.Block > 0 && !o.Shadow && (zone == "" || zone == o.Zone.Name) {
			return true
		}
	}
	return false
}

// Decided reports whether a zone has decided about the request.
func (all *Verdicts) Decided(z *Zone) bool {
	for o := range all.outcomes {
		if o.Zone == z {
			return true
		}
	}
	return false
}

// placeholdersOf returns the placeholders of a request, whose verdicts may be yet to come.
func placeholdersOf(ctx context.Context) func(string) (any, bool) {
	return func(name string) (any, bool) {
		name, ours := strings.CutPrefix(name, placeholderPrefix)
		if !ours {
			return nil, false
		}
		return VerdictsOf(ctx).placeholder(name)
	}
}

const placeholderPrefix = "http.throttle."

// placeholders are the values of {http.throttle.*}, of the decisive outcome.
var placeholders = map[string]func(*Outcome) any{
	"zone":         func(o *Outcome) any { return o.Zone.Name },
	"key":          func(o *Outcome) any { return o.Key },
	"decision":     func(o *Outcome) any { return o.decision.String() },
	"reason":       func(o *Outcome) any { return o.reason.String() },
	"message":      func(o *Outcome) any { return o.Zone.Refusal.Message },
	"support_code": func(o *Outcome) any { return o.code.String() },
	"level":        func(o *Outcome) any { return readable(o.Level()) },
	"capacity":     func(o *Outcome) any { return o.Limit.Capacity },
	"remaining":    func(o *Outcome) any { return readable(o.Limit.Remaining(o.Level())) },
	"cost":         func(o *Outcome) any { return readable(o.Cost) },
	"retry_after":  func(o *Outcome) any { return o.waitSeconds(o.RetryAfter()) },
	"time_to_fit":  func(o *Outcome) any { return o.waitSeconds(o.TimeToFit()) },
	"delay":        func(o *Outcome) any { return readable(o.Delay.Seconds()) },
}

// waitSeconds returns a wait in whole seconds, or "" if waiting does not help.
func (o *Outcome) waitSeconds(wait time.Duration) any {
	if !o.reason.Waits() {
		return ""
	}
	return refusal.WholeSeconds(wait)
}

// placeholder returns the value of a placeholder. Without an outcome, all are empty, and
// blocked is false.
func (all *Verdicts) placeholder(name string) (any, bool) {
	value, known := placeholders[name]
	switch {
	case name == "blocked":
		return all.Blocked(""), true
	case !known:
		return nil, false
	}
	o := all.Decisive()
	if o == nil {
		return "", true
	}
	return value(o), true
}

// MarshalLogObject implements zapcore.ObjectMarshaler: the field in the access log. If no zone
// has decided, as for static files, there is none.
func (all *Verdicts) MarshalLogObject(line zapcore.ObjectEncoder) error {
	if all.Decisive() == nil {
		return nil
	}
	return line.AddObject("throttle", zapcore.ObjectMarshalerFunc(all.marshal))
}

// marshal writes the value of the field. It holds the decisive outcome, and under zones all
// outcomes if there are several.
func (all *Verdicts) marshal(enc zapcore.ObjectEncoder) error {
	if err := all.Decisive().MarshalLogObject(enc); err != nil {
		return err
	}
	if outcomes := slices.Collect(all.outcomes); len(outcomes) > 1 {
		zap.Objects("zones", outcomes).AddTo(enc)
	}
	return nil
}
