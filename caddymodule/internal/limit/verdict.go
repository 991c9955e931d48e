package limit

import (
	"context"
	"math"
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
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/supportcode"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// A Verdict is what the zones of one handler have decided about a request. Zones that count as
// if they had not been asked have no outcome.
type Verdict struct {
	Outcomes  []Outcome
	refused   bool                     // an enforced zone refuses the request
	overflows bool                     // a zone refuses it, or would without shadow: shadow charges are poured no more
	logged    bool                     // the request will be in an access log
	due       []leakybucket.Settlement // corrections that do not depend on the response
	body      *body.Received           // of the request, if the handler has received it

	room     [1]Outcome // where the first one lies
	verdicts Verdicts   // those of the request, if this is its first
}

// Close gives back what is held of the request's body, once the request has been served. If that
// ended with an error, an error route may read the body until the client has its answer.
func (v *Verdict) Close(r *http.Request, err error) {
	if v.body != nil && err != nil {
		v.body.Rest(r)
		context.AfterFunc(record.Find(r.Context()).ClientOf(r), func() { _ = v.body.Close() })
		return
	}
	_ = v.body.Close()
}

// Report calls the zones' Reporters with all outcomes, which are final now, and with the
// header of the response. It also keeps the request out of the access log, if a zone wants
// that of this refusal.
func (v *Verdict) Report(r *http.Request, now time.Time, header http.Header) {
	if v.refused && v.logged && !v.Decisive().Zone.Reporter.Logs(now) {
		caddyhttp.SetVar(r.Context(), caddyhttp.LogSkipVar, true)
	}
	for o := range v.all {
		o.Zone.Reporter.Decided(o, r, header)
	}
}

// Refused reports whether an enforced zone refuses the request.
func (v *Verdict) Refused() bool { return v.refused }

// Overflows reports whether a zone refuses the request, or would without shadow.
func (v *Verdict) Overflows() bool { return v.overflows }

// Decisive returns the strongest outcome, or nil if there is none. An iterator as the argument of a
// function would be allocated.
func (v *Verdict) Decisive() (strongest *Outcome) {
	for o := range v.all {
		if strongest == nil || o.stronger(strongest) {
			strongest = o
		}
	}
	return strongest
}

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
		noted.Charged = append(noted.Charged, v.Outcomes[i].Zone.Name)
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
func (v *Verdict) publish(a *evaluation, logs bool) {
	v.logged = logs
	reads := a.Server.readsVerdicts() || v.refused && v.Decisive().Zone.Refusal.Page != nil // whose page may show it
	all, _ := a.Vars[verdictsVar].(*Verdicts)
	if reads && (all == nil || v.refused) && a.Replacer() != nil { // what is refused may be the first that is shown
		a.Replacer().Map(placeholdersOf(a.Request.Context())) // which are empty without outcomes
	}
	if len(v.Outcomes) == 0 || !logs && !reads || a.Vars == nil {
		return
	}
	if all == nil {
		all = &v.verdicts
		all.all = all.room[:0]
		if reads || a.Server.Nests() { // else no placeholder, matcher or other handler looks for it
			a.Vars[verdictsVar] = all
		}
		if logs {
			if extra, ok := a.Request.Context().Value(caddyhttp.ExtraLogFieldsCtxKey).(*caddyhttp.ExtraLogFields); ok {
				extra.Add(zap.Inline(all))
			}
		}
	}
	all.all = append(all.all, v)
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
func (all *Verdicts) Decisive() (strongest *Outcome) {
	for o := range all.outcomes {
		if strongest == nil || o.stronger(strongest) {
			strongest = o
		}
	}
	return strongest
}

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
	o, value := all.Decisive(), placeholders[name]
	switch {
	case name == "blocked":
		return all.Blocked(""), true
	case value == nil:
		return nil, false
	case o == nil:
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
	// The decisive outcome, and under zones all outcomes if there are several.
	return line.AddObject("throttle", zapcore.ObjectMarshalerFunc(func(enc zapcore.ObjectEncoder) error {
		err := all.Decisive().MarshalLogObject(enc)
		if outcomes := slices.Collect(all.outcomes); len(outcomes) > 1 {
			zap.Objects("zones", outcomes).AddTo(enc)
		}
		return err
	}))
}

// A Decision is what a zone decided about a request. A larger one is stronger.
type Decision uint8

// The decisions. Skipped means that the charge fit and another zone refused: the
// zone counts as if it had not been asked.
const (
	Skipped Decision = iota
	Admitted
	ShadowDelayed
	ShadowRefused
	Delayed
	Refused
	Decisions // how many there are
)

func (d Decision) String() string {
	return [Decisions]string{"", "admitted", "shadow_delayed", "shadow_refused", "delayed", "refused"}[d]
}

// An Outcome is what one zone decides about a request: the charge as the store was asked, or
// would have been, and the store's answer. Once [Decide] has returned, only what becomes of the
// outcome is written, its aftermath. Requests keep outcomes in memory until their access log is written.
type Outcome struct {
	Zone               *Zone
	leakybucket.Charge                      // with a Limit of 0 if the zone has none for the key
	Answer             leakybucket.Decision // zero, but for the level under a known block, if the store was not asked

	Delay time.Duration // how long the request is to wait, or would have to
	Block time.Duration // the rest of the block; 0 if none runs

	device *deviceClient // what device cookies tell, if the zone trusts devices

	decision Decision
	reason   Reason // of a refusal

	asked   bool // the store was
	starved bool // there was no room for the body that the zone wanted
	exiting bool // the process is about to end, so the request could not wait

	aftermath
}

// An aftermath is what becomes of an outcome after the decision.
type aftermath struct {
	settledCost float64          // the corrected cost, in units
	code        supportcode.Code // names the refusal, for support; zero if the zone gives none
	unlogged    uint32           // how many refusals of the zone were kept out of the access log before this line

	earned  bool // the response earns a refund
	settled bool // the charge was corrected by the response
}

// Decision returns the zone's decision.
func (o *Outcome) Decision() Decision { return o.decision }

// Reason returns why the zone refused, or None.
func (o *Outcome) Reason() Reason { return o.reason }

// Refuse decides that the zone refuses. In shadow, that is only counted.
func (o *Outcome) Refuse(why Reason) {
	if o.decision, o.reason = Refused, why; o.Shadow {
		o.decision = ShadowRefused
	}
}

// Level returns how full the bucket is after the decision, in units.
func (o *Outcome) Level() float64 {
	if o.reason == None && o.Answer.Poured {
		return o.Answer.Level + o.Cost
	}
	return o.Answer.Level
}

// Fraction returns how full the bucket is after the decision, as a fraction of its
// capacity. It is not known if the store was not asked.
func (o *Outcome) Fraction() (fraction float64, known bool) {
	if !o.asked || o.Answer.Undecided {
		return 0, false
	}
	return o.Level() / o.Limit.Capacity, true
}

// readable rounds units of cost, or seconds, to six decimals, for logs and placeholders.
func readable(number float64) float64 { return math.Round(number*1e6) / 1e6 }

// MarshalLogObject implements zapcore.ObjectMarshaler: one zone's part of the field in
// the access log.
func (o *Outcome) MarshalLogObject(enc zapcore.ObjectEncoder) error {
	why := o.reason
	enc.AddString("zone", o.Zone.Name)
	enc.AddString("decision", o.decision.String())
	if why == None && o.starved {
		why = NoMemory // which tells why it cost as much
	}
	if why != None {
		enc.AddString("reason", why.String())
	}
	if o.Key != "" {
		enc.AddString("key", o.Key)
	}
	if o.Limit.Capacity > 0 {
		enc.AddFloat64("cost", readable(o.Cost))
		enc.AddFloat64("level", readable(o.Level()))
		enc.AddFloat64("capacity", o.Limit.Capacity)
	}
	if o.Delay > 0 {
		enc.AddFloat64("delay", readable(o.Delay.Seconds()))
	}
	if o.Block > 0 {
		enc.AddFloat64("blocked", readable(o.Block.Seconds()))
	}
	if o.settled {
		enc.AddFloat64("settled", readable(o.settledCost))
	}
	if o.code != 0 {
		enc.AddString("support_code", o.code.String())
	}
	if o.unlogged == 0 { // this line may be the first that is written, and shows the outcome twice
		o.unlogged = o.Zone.Reporter.Unlogged()
	}
	if o.unlogged > 0 {
		enc.AddInt64("unlogged", int64(o.unlogged))
	}
	if o.reason.Waits() {
		enc.AddInt64("retry_after", refusal.WholeSeconds(o.RetryAfter()))
	}
	return nil
}

// overflow returns why a charge does not fit.
func (o *Outcome) overflow() Reason {
	switch {
	case o.Answer.Undecided:
		return NoStore
	case o.Limit.Oversize(o.Cost):
		return Oversize
	case o.Block > 0 && !o.Answer.Began:
		return Blocked
	case o.starved:
		return NoMemory
	}
	return Capacity
}

// A Reporter counts and logs the outcomes of a zone. It must be safe for concurrent
// use.
type Reporter interface {
	// Decided is called once for each outcome, when it is final, unless Admitted is. header is that of the
	// response, or nil if an error ends the request.
	Decided(o *Outcome, r *http.Request, header http.Header)

	// Admitted counts a charge that fits, of a request of which nobody wants to know more.
	Admitted(o *Outcome, r *http.Request)

	// Count counts a request, or a charge of it.
	Count(Count)

	// Logs reports whether the line of a refused request is to be in the access log.
	// Unlogged returns how many were not, since it was asked last.
	Logs(now time.Time) bool
	Unlogged() uint32

	// Settled counts a response of this status, which is 0 if it is not known, and whether it
	// earned a refund, or does not say what the request cost.
	Settled(status int, refunded, known bool)

	// Failed warns that a matcher has failed. If the zone is enforced, the request fails.
	Failed(err error, enforced bool)
}

// A Count is what a Reporter counts.
type Count uint8

// The counts.
const (
	CountExempt   Count = iota // requests that the zone exempts, or does not limit; with field, of those with a query or a body
	CountKeyless               // requests whose key lacks a part
	CountDevice                // device cookies that were given
	CountFallback              // charges that were decided without the shared store
	Counts                     // how many there are
)
