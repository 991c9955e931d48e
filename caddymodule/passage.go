package caddymodule

import (
	"math"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// A decision is what became of a request in one zone; the stronger, the larger.
type decision uint8

const (
	admitted decision = iota
	shadowRefused
	refused
	decisions
)

func (d decision) String() string {
	return [decisions]string{"admitted", "shadow_refused", "refused"}[d]
}

// A reason says why a request was refused.
type reason uint8

const (
	none        reason = iota
	capacity           // the bucket would overflow
	oversize           // the cost can never fit
	banned             // an override says blocked
	missingKey         // the key is missing, and the zone refuses such requests
	unlistedKey        // no override names the key, and the zone refuses such requests
	earlyData          // the client's address is not verified yet
	reasons
)

func (r reason) String() string {
	return [reasons]string{"", "capacity", "oversize", "banned", "missing_key", "unlisted_key", "early_data"}[r]
}

// An outcome is what one zone decided about a request.
type outcome struct {
	zone     *Zone
	shadow   bool   // nobody is refused for it
	key      string // of the bucket, without the zone
	decision decision
	reason   reason

	limit  leakybucket.Limit
	cost   float64
	level  float64 // of the bucket before the charge
	poured float64 // the cost, or nothing

	jitter  float64 // how much longer to wait than need be, as a fraction
	settled bool    // the response has told
	paid    float64 // what it really cost
}

func refusal(shadow bool) decision {
	if shadow {
		return shadowRefused
	}
	return refused
}

// levelNow returns how full the bucket is after the decision.
func (o *outcome) levelNow() float64 {
	return o.level + o.poured
}

// settle notes what the request really cost, for the access log.
func (o *outcome) settle(cost float64) { o.settled, o.paid = true, cost }

// waits reports whether waiting helps at all.
func (o *outcome) waits() bool { return o.reason == capacity }

// retryAfter returns how long a refused client is told to wait.
func (o *outcome) retryAfter() time.Duration {
	if !o.waits() {
		return 0
	}
	wait := max(o.zone.retryFloor, o.timeToFit())
	if o.zone.RetryAfter == retryEmpty {
		wait = o.limit.TimeToEmpty(o.level)
	}
	return wait + time.Duration(o.jitter*float64(wait))
}

func (o *outcome) timeToFit() time.Duration {
	if !o.waits() {
		return 0
	}
	return o.limit.TimeToFit(o.level, o.cost)
}

// stronger reports whether o decides about the request rather than other: the
// stronger decision, of refusals the one that lasts longest, among equals the
// fullest bucket.
func (o *outcome) stronger(other *outcome) bool {
	if o.decision != other.decision {
		return o.decision > other.decision
	}
	if o.waits() != other.waits() {
		return other.waits()
	}
	if a, b := o.retryAfter(), other.retryAfter(); a != b {
		return a > b
	}
	return o.levelNow()*other.limit.Capacity > other.levelNow()*o.limit.Capacity
}

// A passage is what throttle did with a request, in all handlers it came by.
type passage struct {
	outcomes []outcome
	deciding int
	bill     *bill      // of the innermost handler that is serving it, if it has one
	room     [3]outcome // for most requests enough
}

// passageVar is not a name that users give variables.
const passageVar = "throttle.passage"

// passageOf returns what earlier handlers decided, or nil.
func passageOf(r *http.Request) *passage {
	p, _ := caddyhttp.GetVar(r.Context(), passageVar).(*passage)
	return p
}

// newPassage makes a passage and tells the request's placeholders and access
// log of it. Neither computes anything before it is asked.
func newPassage(r *http.Request) *passage {
	p := new(passage)
	p.outcomes = p.room[:0]
	ctx := r.Context()
	caddyhttp.SetVar(ctx, passageVar, p)
	if repl, ok := ctx.Value(caddy.ReplacerCtxKey).(*caddy.Replacer); ok {
		repl.Map(p.placeholder)
	}
	if server, _ := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server); server != nil && server.Logs != nil {
		if extra, ok := ctx.Value(caddyhttp.ExtraLogFieldsCtxKey).(*caddyhttp.ExtraLogFields); ok {
			extra.Add(zap.Object("throttle", p))
		}
	}
	return p
}

// charged reports whether a zone has decided about the request already.
func (p *passage) charged(zone string) bool {
	if p == nil {
		return false
	}
	for i := range p.outcomes {
		if p.outcomes[i].zone.Name == zone {
			return true
		}
	}
	return false
}

// add takes note of an outcome, and counts it.
func (p *passage) add(o outcome) {
	if o.decision != admitted && o.zone.RetryJitter > 0 {
		o.jitter = rand.Float64() * float64(o.zone.RetryJitter) / 100
	}
	p.outcomes = append(p.outcomes, o)
	last := len(p.outcomes) - 1
	if last > 0 && p.outcomes[last].stronger(&p.outcomes[p.deciding]) {
		p.deciding = last
	}
	o.zone.decided[o.decision][o.reason].Inc()
	if o.decision != admitted {
		o.zone.shared.refusals[o.decision].note(o.key)
	}
}

// decisive returns the outcome that decides about the request.
func (p *passage) decisive() *outcome { return &p.outcomes[p.deciding] }

// wholeSeconds is how durations are told to clients: rounded up, so that who
// waits that long does not come too early, and never 0, which some clients
// take for "at once".
func wholeSeconds(d time.Duration) int64 {
	return max(1, int64(math.Ceil(d.Seconds())))
}

// placeholder answers {http.throttle.*}.
func (p *passage) placeholder(name string) (any, bool) {
	const prefix = "http.throttle."
	if len(name) <= len(prefix) || name[:len(prefix)] != prefix {
		return nil, false
	}
	o := p.decisive()
	switch name[len(prefix):] {
	case "zone":
		return o.zone.Name, true
	case "key":
		return o.key, true
	case "decision":
		return o.decision.String(), true
	case "reason":
		return o.reason.String(), true
	case "level":
		return o.levelNow(), true
	case "capacity":
		return o.limit.Capacity, true
	case "remaining":
		return o.limit.Remaining(o.levelNow()), true
	case "cost":
		return o.cost, true
	case "retry_after":
		return o.seconds(o.retryAfter()), true
	case "time_to_fit":
		return o.seconds(o.timeToFit()), true
	}
	return nil, false
}

// seconds is "" where there is nothing to wait for.
func (o *outcome) seconds(d time.Duration) any {
	if !o.waits() {
		return ""
	}
	return wholeSeconds(d)
}

// MarshalLogObject writes the access log's field: the deciding zone, and under
// zones all of them if there are several.
func (p *passage) MarshalLogObject(enc zapcore.ObjectEncoder) error {
	if err := p.decisive().MarshalLogObject(enc); err != nil || len(p.outcomes) == 1 {
		return err
	}
	return enc.AddArray("zones", zapcore.ArrayMarshalerFunc(func(enc zapcore.ArrayEncoder) error {
		for i := range p.outcomes {
			if err := enc.AppendObject(&p.outcomes[i]); err != nil {
				return err
			}
		}
		return nil
	}))
}

// MarshalLogObject writes one zone's part of the access log's field.
func (o *outcome) MarshalLogObject(enc zapcore.ObjectEncoder) error {
	enc.AddString("zone", o.zone.Name)
	enc.AddString("decision", o.decision.String())
	if o.reason != none {
		enc.AddString("reason", o.reason.String())
	}
	if o.key != "" {
		enc.AddString("key", o.key)
	}
	if o.limit.Capacity > 0 {
		enc.AddFloat64("cost", o.cost)
		enc.AddFloat64("level", o.levelNow())
		enc.AddFloat64("capacity", o.limit.Capacity)
	}
	if o.settled {
		enc.AddFloat64("settled", o.paid)
	}
	if o.waits() {
		enc.AddInt64("retry_after", wholeSeconds(o.retryAfter()))
	}
	return nil
}
