package decision

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/refusal"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/rule"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// A Verdict holds the outcomes of one handler for a request. The verdicts of all handlers
// that the request passes form a list. Methods about the whole request must be called
// on the first; see [VerdictOf].
type Verdict struct {
	Outcomes []Outcome   // of this handler's zones
	static   []exemption // the zones that exempt the request as a static file
	next     *Verdict    // of the next handler inside
	pooled   bool        // nobody else knows the verdict
}

// verdictVar is the variable with the first verdict. No user would choose its name.
const verdictVar = "throttle.verdict"

// VerdictOf returns the verdict of the first handler that has decided about a request,
// or nil.
func VerdictOf(r *http.Request) *Verdict {
	first, _ := caddyhttp.GetVar(r.Context(), verdictVar).(*Verdict)
	return first
}

var verdictPool = sync.Pool{New: func() any { return new(Verdict) }}

// newVerdict returns a verdict with room for n outcomes. If nobody else reads it, it comes from
// a pool. Otherwise it is, for most requests, one allocation.
func newVerdict(n int, unread Unread) *Verdict {
	switch {
	case unread.Verdict:
		v := verdictPool.Get().(*Verdict)
		v.pooled = true
		return v
	case n == 1:
		one := new(struct {
			Verdict
			room [1]Outcome
		})
		one.Outcomes = one.room[:0]
		return &one.Verdict
	case n == 2, n == 3:
		some := new(struct {
			Verdict
			room [3]Outcome
		})
		some.Outcomes = some.room[:0]
		return &some.Verdict
	}
	return &Verdict{Outcomes: make([]Outcome, 0, n)}
}

// Forget ends the life of a verdict that nobody else reads, once its request was served. Where
// that is not so, it does nothing.
func (v *Verdict) Forget() {
	if v == nil || !v.pooled {
		return
	}
	clear(v.Outcomes)
	v.Outcomes, v.static = v.Outcomes[:0], nil
	verdictPool.Put(v)
}

// Report calls the zones' Reporters with all outcomes, which are final now, and with the
// header of the response. It also keeps the request out of the access log, if a zone wants
// that of this refusal, and announces the limits in the header. A nil verdict has nothing to
// report.
func (v *Verdict) Report(r *http.Request, d *Directive, now time.Time, header http.Header) {
	if v == nil {
		return
	}
	// A zone of another handler may refuse, too, by a block that holds everywhere.
	line := (d.LimitsLog || v.Refused()) && logged(r, d.Server)
	if line && v.Refused() && !v.Decisive().Zone.Reporter.Logs(now) {
		line = false
		caddyhttp.SetVar(r.Context(), caddyhttp.LogSkipVar, true)
	}
	for i := range v.Outcomes {
		o := &v.Outcomes[i]
		if line && o.Decision() != Withdrawn {
			o.unlogged = o.Zone.Reporter.Unlogged()
		}
		o.report(r, now, header)
	}
	if d.Announces {
		v.announce(header)
	}
}

// report calls the zone's Reporter with a final outcome. It must be called once.
func (o *Outcome) report(r *http.Request, now time.Time, header http.Header) {
	if o.Decision() != Withdrawn {
		o.Zone.Reporter.Decided(o, r, now, header)
	}
}

// publish shows the verdict to later handlers, placeholders and the access log. The last two
// compute values only when they are read.
func (v *Verdict) publish(p *plan) {
	if p.earlier != nil {
		p.earlier.last().next = v
		return
	}
	if p.Vars != nil {
		p.Vars[verdictVar] = v
	}
	if !p.Unread.Placeholders && p.Replacer() != nil {
		p.Replacer().Map(v.placeholder)
	}
	if logged(p.Request, p.Server) {
		if extra, ok := p.Request.Context().Value(caddyhttp.ExtraLogFieldsCtxKey).(*caddyhttp.ExtraLogFields); ok {
			extra.Add(zap.Inline(logField{v}))
		}
	}
}

// last returns the verdict of the last handler.
func (v *Verdict) last() *Verdict {
	for v.next != nil {
		v = v.next
	}
	return v
}

// logged reports whether the request will be in an access log, as far as is known. If
// server is nil, it is the one in the request's context.
func logged(r *http.Request, server *caddyhttp.Server) bool {
	ctx := r.Context()
	if server == nil {
		server, _ = ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	}
	if server == nil || server.Logs == nil {
		return false
	}
	skipped, _ := caddyhttp.GetVar(ctx, caddyhttp.LogSkipVar).(bool)
	return !skipped
}

// all iterates over the outcomes of the request that were not withdrawn.
func (v *Verdict) all(yield func(*Outcome) bool) {
	for ; v != nil; v = v.next {
		for i := range v.Outcomes {
			if o := &v.Outcomes[i]; o.Decision() != Withdrawn && !yield(o) {
				return
			}
		}
	}
}

// Decided reports whether a zone has decided about the request.
func (v *Verdict) Decided(z *Zone) (found bool) {
	for ; v != nil && !found; v = v.next {
		for i := range v.Outcomes {
			found = found || v.Outcomes[i].Zone == z
		}
		for _, exempt := range v.static {
			found = found || exempt.zone == z
		}
	}
	return found
}

// Refused reports whether an enforced zone of this handler refuses the request. A nil
// verdict refuses nothing.
func (v *Verdict) Refused() bool {
	if v == nil {
		return false
	}
	for i := range v.Outcomes {
		if v.Outcomes[i].Decision() == Refused {
			return true
		}
	}
	return false
}

// Blocked reports whether an enforced zone of this name has found the client blocked.
// An empty name means any zone.
func (v *Verdict) Blocked(zone string) bool {
	for o := range v.all {
		if o.Block > 0 && o.Shadow == 0 && (zone == "" || zone == o.Zone.Name) {
			return true
		}
	}
	return false
}

// uncharged returns the placeholders of a request that no zone has charged. A later
// handler may still charge it.
func uncharged(ctx context.Context) func(string) (any, bool) {
	return func(name string) (any, bool) {
		if !strings.HasPrefix(name, placeholderPrefix) {
			return nil, false
		}
		v, _ := caddyhttp.GetVar(ctx, verdictVar).(*Verdict)
		return v.placeholder(name)
	}
}

const placeholderPrefix = "http.throttle."

// placeholders are the values of {http.throttle.*}, of the decisive outcome.
var placeholders = map[string]func(*Outcome) any{
	"zone":         func(o *Outcome) any { return o.Zone.Name },
	"key":          func(o *Outcome) any { return o.Key },
	"decision":     func(o *Outcome) any { return o.Decision().String() },
	"reason":       func(o *Outcome) any { return o.Reason().String() },
	"message":      func(o *Outcome) any { return o.Zone.Message },
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
	if !o.Reason().Waits() {
		return ""
	}
	return refusal.WholeSeconds(wait)
}

// placeholder returns the value of a placeholder {http.throttle.*}. Without an
// outcome, all are empty, and blocked is false.
func (v *Verdict) placeholder(name string) (any, bool) {
	name, ours := strings.CutPrefix(name, placeholderPrefix)
	value, known := placeholders[name]
	switch {
	case ours && name == "blocked":
		return v.Blocked(""), true
	case !ours || !known:
		return nil, false
	}
	o := v.Decisive()
	if o == nil {
		return "", true
	}
	return value(o), true
}

// A logField is the field in the access log. If no zone has decided, as for static
// files, there is none.
type logField struct{ v *Verdict }

// MarshalLogObject implements zapcore.ObjectMarshaler.
func (f logField) MarshalLogObject(line zapcore.ObjectEncoder) error {
	if f.v.Decisive() == nil {
		return nil
	}
	return line.AddObject("throttle", f.v)
}

// MarshalLogObject implements zapcore.ObjectMarshaler: the value of the field. It holds
// the decisive outcome, and under zones all outcomes if there are several.
func (v *Verdict) MarshalLogObject(enc zapcore.ObjectEncoder) error {
	o := v.Decisive()
	if o == nil {
		return nil // the request has no field; see logField
	}
	if err := o.MarshalLogObject(enc); err != nil {
		return err
	}
	n := 0
	for range v.all {
		n++
	}
	if n > 1 {
		zap.Objects("zones", slices.Collect(v.all)).AddTo(enc)
	}
	return nil
}

// ended reports whether the request has ended for a group in an earlier handler.
func (v *Verdict) ended(group leakybucket.Shadow) bool {
	for ; v != nil && group < rule.ShadowBeside; v = v.next {
		for i := range v.Outcomes {
			if o := &v.Outcomes[i]; o.Shadow == group && o.Reason() != rule.None {
				return true
			}
		}
	}
	return false
}
