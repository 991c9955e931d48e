package inflight

import (
	"net/http"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/body"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/inflight/gate"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/inflight/pass"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/refusal"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/supportcode"
)

// A decision is what becomes of a request. In shadow, it is what would have.
type decision uint8

const (
	admitted decision = iota
	delayed           // admitted after a wait
	refused
	shadowDelayed
	shadowRefused
	decisions // how many there are
)

func (d decision) String() string {
	return [...]string{"admitted", "delayed", "refused", "shadow_delayed", "shadow_refused"}[d]
}

// decisionAfter returns the decision about a request that has its slot.
func decisionAfter(waited time.Duration) decision {
	if waited > 0 {
		return delayed
	}
	return admitted
}

// A reason is why a request is refused.
type reason uint8

const (
	none      reason = iota
	inFlight         // no slot is free, and the request may not wait
	queueFull        // no place to wait is, or the process is about to end
	timeout          // its turn would come too late, or has not come in time, or its body has not
	earlyData        // its client's address is not verified yet
	memory           // there is no room for its body
	tooLarge         // its body is longer than is received
	failed           // a matcher has failed
	reasons          // how many there are
)

func (r reason) String() string {
	return [...]string{"", "in_flight", "queue_full", "timeout", "early_data", "memory", "too_large", "error"}[r]
}

// reasonOf returns why a request is refused whose wait has ended so.
func reasonOf(why gate.Why) reason {
	switch why {
	case gate.Busy:
		return inFlight
	case gate.TooLong, gate.TimedOut:
		return timeout
	}
	return queueFull
}

// soon is when a client is told to come back where nobody knows when there will be a slot, or
// room.
const soon = time.Second

// refuse refuses the request.
func (v *visit) refuse(w http.ResponseWriter, why reason) error {
	v.record.Refused = true
	f := refusal.Refusal{
		Status: v.rule.Refusal.Status, Message: v.rule.Refusal.Message, Page: v.rule.Refusal.Page, AsError: v.rule.Refusal.AsError, Violated: v,
	}
	switch {
	case why == earlyData:
		f.Status = http.StatusTooEarly // browsers send it again by themselves
	case why == tooLarge:
		f.Status = http.StatusRequestEntityTooLarge
	case why == timeout && v.Why == gate.Admitted: // its body came too slowly, so it never asked
		f.Status = http.StatusRequestTimeout
	case why == memory:
		f.Status, v.after = http.StatusServiceUnavailable, soon
	case v.Shares():
		v.after = v.comesBack()
		f.Busy = v.busy()
	default:
		v.after = soon
	}
	if v.Why == gate.Exiting {
		f.Status = http.StatusServiceUnavailable
	}
	f.Waits, f.RetryAfter, f.TimeToFit = v.after > 0, v.after, v.after
	if v.rule.Refusal.ZoneHeader {
		f.Zone = v.Name
	}
	if v.rule.Refusal.SupportCode {
		v.code = v.Refusals.Add(supportcode.Refusal{At: time.Now(), Zone: v.Name, Key: v.key(), Reason: why.String(), Wait: v.after.Seconds()})
		f.Code = v.code
	}
	v.decide(refused, why)
	v.publish()
	if limit := v.rule.Refusal.LogLimit; limit != nil && !limit.Allow() {
		caddyhttp.SetVar(v.r.Context(), caddyhttp.LogSkipVar, true)
	}
	return f.Write(w, v.r, body.AllReceived(v.r))
}

// busy returns what a client gets beside a refusal that has lost its turn: a page that reloads by
// itself, for so many times, and a pass that says when it may come back. A member who came too
// early keeps the one that it has.
func (v *visit) busy() *refusal.Busy {
	b := &refusal.Busy{Reload: v.tries < pass.Reloads}
	if v.client.Known() && v.early <= v.Waited {
		addr, now := v.slot.Client.Addr(), time.Now()
		b.Pass = func(header http.Header) { v.counts.passed(v.client.Refused(header, now, v.after, addr)) }
		b.NoPass = func() { v.counts.passed(v.client.RefusedApart(now, v.after, addr)) }
	}
	return b
}

// Violated returns the names of what has refused the request.
func (v *visit) Violated() []string { return []string{v.Name} }

// key returns what the request was judged by: whose slots it wanted, or who takes turns.
func (v *visit) key() string {
	if v.Shares() {
		return v.slot.Keys[0]
	}
	return v.slot.Key
}

// decide notes what becomes of the request, in the counters and in the access log, if there is
// one.
func (v *visit) decide(d decision, why reason) {
	v.decision, v.reason = d, why
	v.counts.decided(v)
	if d == delayed {
		v.publish()
	}
	if v.server != nil && v.server.Logs == nil {
		return
	}
	if extra, ok := v.r.Context().Value(caddyhttp.ExtraLogFieldsCtxKey).(*caddyhttp.ExtraLogFields); ok {
		extra.Set(zap.Object("in_flight", v.verdict())) // the last one, if the request passes several
	}
}

// A verdict is what a limit has decided about a request, as logs and placeholders tell it. It does
// not change.
type verdict struct {
	name, key, rank, why, message string
	decision                      decision
	reason                        reason
	waited, after                 time.Duration
	code                          supportcode.Code
}

func (v *visit) verdict() *verdict {
	d := &verdict{
		name: v.Name, key: v.key(), message: v.rule.Refusal.Message, decision: v.decision, reason: v.reason,
		waited: v.Waited.Round(time.Microsecond), after: v.after, code: v.code,
	}
	if v.Shares() {
		d.rank, d.why = v.slot.Rank.String(), v.why
	}
	return d
}

// MarshalLogObject implements zapcore.ObjectMarshaler: the value of the field.
func (d *verdict) MarshalLogObject(enc zapcore.ObjectEncoder) error {
	enc.AddString("name", d.name)
	enc.AddString("decision", d.decision.String())
	for _, field := range [][2]string{{"reason", d.reason.String()}, {"key", d.key}, {"rank", d.rank}, {"why", d.why}, {"support_code", d.code.String()}} {
		if field[1] != "" {
			enc.AddString(field[0], field[1])
		}
	}
	if d.waited > 0 {
		enc.AddFloat64("waited", d.waited.Seconds())
	}
	return nil
}

const (
	placeholderPrefix = "http.in_flight."

	// verdictVar is the variable with the verdict that the placeholders tell of. No user would
	// choose its name.
	verdictVar = "throttle.in_flight"
)

// publish shows the verdict to pages and error routes. Of several, they see the last one.
func (v *visit) publish() {
	ctx := v.r.Context()
	if repl, ok := ctx.Value(caddy.ReplacerCtxKey).(*caddy.Replacer); ok && caddyhttp.GetVar(ctx, verdictVar) == nil {
		repl.Map(func(name string) (any, bool) {
			if name, ours := strings.CutPrefix(name, placeholderPrefix); ours {
				return caddyhttp.GetVar(ctx, verdictVar).(*verdict).placeholder(name)
			}
			return nil, false
		})
	}
	caddyhttp.SetVar(ctx, verdictVar, v.verdict())
}

// placeholder returns the value of a placeholder {http.in_flight.*}.
func (d *verdict) placeholder(name string) (any, bool) {
	switch name {
	case "name":
		return d.name, true
	case "key":
		return d.key, true
	case "decision":
		return d.decision.String(), true
	case "reason":
		return d.reason.String(), true
	case "waited":
		return d.waited.Seconds(), true
	case "rank":
		return d.rank, true
	case "retry_after":
		if d.after == 0 {
			return "", true
		}
		return refusal.WholeSeconds(d.after), true
	case "message":
		return d.message, true
	case "support_code":
		return d.code.String(), true
	}
	return nil, false
}
