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
	timeout          // its turn would come too late, or has not come in time
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
	if limit := v.rule.Refusal.LogLimit; limit != nil && !limit.Allow() {
		caddyhttp.SetVar(v.r.Context(), caddyhttp.LogSkipVar, true)
	}
	v.publish()
	return f.Write(w, v.r, body.AllReceived(v.r))
}

// busy returns what a client gets beside a refusal that has lost its turn: a page that reloads by
// itself, for so many times, and a pass that says when it may come back. A member who came too
// early keeps the one that it has.
func (v *visit) busy() *refusal.Busy {
	b := &refusal.Busy{Reload: v.tries < pass.Reloads}
	if v.client.Known() && v.early <= v.Waited {
		addr, now := v.asks.Client.Addr(), time.Now()
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
		return v.asks.Keys[0]
	}
	return v.asks.Key
}

// waited returns how long the request has waited, in seconds.
func (v *visit) waited() float64 { return v.Waited.Round(time.Microsecond).Seconds() }

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
		extra.Set(zap.Object("in_flight", v)) // the last one, if the request passes several
	}
}

// MarshalLogObject implements zapcore.ObjectMarshaler: the value of the field.
func (v *visit) MarshalLogObject(enc zapcore.ObjectEncoder) error {
	enc.AddString("name", v.Name)
	enc.AddString("decision", v.decision.String())
	for _, field := range [][2]string{{"reason", v.reason.String()}, {"key", v.key()}, {"support_code", v.code.String()}} {
		if field[1] != "" {
			enc.AddString(field[0], field[1])
		}
	}
	if v.Shares() {
		enc.AddString("rank", v.asks.Rank.String())
		if v.why != "" {
			enc.AddString("why", v.why)
		}
	}
	if v.Waited > 0 {
		enc.AddFloat64("waited", v.waited())
	}
	return nil
}

const (
	placeholderPrefix = "http.in_flight."

	// visitVar is the variable with the visit that the placeholders tell of. No user would choose
	// its name.
	visitVar = "throttle.in_flight"
)

// publish shows the visit to pages and error routes. Of several, they see the last one.
func (v *visit) publish() {
	ctx := v.r.Context()
	if repl, ok := ctx.Value(caddy.ReplacerCtxKey).(*caddy.Replacer); ok && caddyhttp.GetVar(ctx, visitVar) == nil {
		repl.Map(func(name string) (any, bool) {
			if name, ours := strings.CutPrefix(name, placeholderPrefix); ours {
				return caddyhttp.GetVar(ctx, visitVar).(*visit).placeholder(name)
			}
			return nil, false
		})
	}
	caddyhttp.SetVar(ctx, visitVar, v)
}

// placeholder returns the value of a placeholder {http.in_flight.*}.
func (v *visit) placeholder(name string) (any, bool) {
	switch name {
	case "name":
		return v.Name, true
	case "key":
		return v.key(), true
	case "decision":
		return v.decision.String(), true
	case "reason":
		return v.reason.String(), true
	case "waited":
		return v.waited(), true
	case "rank":
		if !v.Shares() {
			return "", true
		}
		return v.asks.Rank.String(), true
	case "retry_after":
		if v.after == 0 {
			return "", true
		}
		return refusal.WholeSeconds(v.after), true
	case "message":
		return v.rule.Refusal.Message, true
	case "support_code":
		return v.code.String(), true
	}
	return nil, false
}
