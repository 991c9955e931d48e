package decision

import (
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"

	"go.uber.org/zap/zapcore"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/refusal"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/rule"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/supportcode"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// A Decision is what a zone decided about a request. A larger one is stronger.
type Decision uint8

// The decisions. Withdrawn means that the charge fit and another zone refused: the
// zone counts as if it had not been asked.
const (
	Withdrawn Decision = iota
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

// An Outcome is the charge of one zone to one request, what the store says about it, and what
// the zone decides. Once [Decide] has returned, only what it becomes is written. Requests keep
// outcomes in memory until their access log is written, so what follows from the rule is not
// repeated here.
type Outcome struct {
	Zone *Zone
	Key  string // of the bucket, without the zone

	terms  // zero if the zone has no limit for the key
	answer // of the store

	Delay time.Duration // how long the request is to wait, or would have to
	Block time.Duration // the rest of the block; 0 if none runs

	// device is what device cookies tell of the client, or nil if the zone trusts no
	// devices or the request names no account.
	device *knownDevice

	// What becomes of the outcome after the decision:

	settledCost float64          // the corrected cost, in units
	code        supportcode.Code // names the refusal, for support; zero if the zone gives none
	unlogged    uint32           // how many refusals of the zone were kept out of the access log before this line

	decision Decision
	reason   rule.Reason // of a refusal

	exiting bool // the process is about to end, so the request could not wait
	settled bool // the charge was corrected by the response

	jitter float32 // how much is added to Retry-After, as a fraction

	// What the decision followed from:

	Shadow  leakybucket.Shadow // the group in which the zone only counts for this key; 0 if it is enforced
	Began   bool               // this request began the block
	probe   bool               // the store is asked, and pours nothing
	starved bool               // there was no memory to read the body that the zone wanted
}

// terms are those of a charge, in units; see [leakybucket.Charge].
type terms struct {
	Limit               leakybucket.Limit
	Cost, debt, ceiling float64
}

// answer is the store's decision about a charge; see [leakybucket.Decision].
type answer struct {
	level float64
	at    leakybucket.Instant

	asked                          bool // the store was
	dropped                        bool // not asked, since the store and its fallback failed, or the group has ended before
	fits, poured, undecided, local bool
}

// Charge returns what the store is asked, or was.
func (o *Outcome) Charge() leakybucket.Charge {
	z := o.Zone.Rule
	c := leakybucket.Charge{
		Zone: z.Name, Key: o.Key, Shadow: o.Shadow, Probe: o.probe,
		Limit: o.Limit, Cost: o.Cost, Debt: o.debt, Ceiling: o.ceiling, Block: z.Block,
	}
	if z.Delay != nil {
		c.Undelayed = *z.Delay
	}
	return c
}

// answered notes the store's decision about a charge, of which a stand-in for a shared store
// may have changed the terms.
func (o *Outcome) answered(c *leakybucket.Charge, d *leakybucket.Decision) {
	o.terms = terms{c.Limit, c.Cost, c.Debt, c.Ceiling}
	o.level, o.at, o.local = d.Level, d.At, d.Local
	o.fits, o.poured, o.undecided, o.Began = d.Fits, d.Poured, d.Undecided, d.Began
	if d.BlockedUntil != 0 {
		o.Block = d.BlockedUntil.Sub(d.At)
	}
	if o.Zone.Delay != nil && !d.Undecided {
		o.Delay = c.Delay(d)
	}
}

// was returns what a settlement must know of the store's answer.
func (o *Outcome) was() leakybucket.Decision {
	return leakybucket.Decision{Fits: o.fits, Poured: o.poured, Undecided: o.undecided, Level: o.level, At: o.at, Local: o.local}
}

// Decision returns the zone's decision.
func (o *Outcome) Decision() Decision { return o.decision }

// Reason returns why the zone refused, or None.
func (o *Outcome) Reason() rule.Reason { return o.reason }

// Refuse decides that the zone refuses. In shadow, that is only counted.
func (o *Outcome) Refuse(why rule.Reason) {
	if o.decision, o.reason = Refused, why; o.Shadow != 0 {
		o.decision = ShadowRefused
	}
}

// Level returns how full the bucket is after the decision, in units.
func (o *Outcome) Level() float64 {
	if o.poured && o.Reason() == rule.None {
		return o.level + o.Cost
	}
	return o.level
}

// Fraction returns how full the bucket is after the decision, as a fraction of its
// capacity. It is not known if the store was not asked.
func (o *Outcome) Fraction() (fraction float64, known bool) {
	if !o.asked || o.undecided {
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
	if why == rule.None && o.starved {
		why = rule.NoMemory // which tells why it cost as much
	}
	if why != rule.None {
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
	if o.unlogged > 0 {
		enc.AddInt64("unlogged", int64(o.unlogged))
	}
	if o.Reason().Waits() {
		enc.AddInt64("retry_after", refusal.WholeSeconds(o.RetryAfter()))
	}
	return nil
}

// finish sets the decision of one outcome.
func (p *plan) finish(o *Outcome) {
	if o.Zone.RetryJitter > 0 {
		o.jitter = float32(rand.Float64() * o.Zone.RetryJitter)
	}
	if o.Reason() != rule.None || o.dropped {
		return // known without asking, or the zone counts as not asked
	}
	delay := o.Delay
	o.Delay = 0
	switch why := p.judge(o); {
	case why != rule.None:
		o.Refuse(why)
		return
	case p.ends(o.Shadow, true) || o.asked && o.undecided:
		return
	}
	switch o.Delay = delay; {
	case delay == 0:
		o.decision = Admitted
	case o.Shadow != 0:
		o.decision = ShadowDelayed
	default:
		o.decision = Delayed
	}
}

// judge returns why a zone refuses after the store was asked, or None.
func (p *plan) judge(o *Outcome) rule.Reason {
	if o.Block != 0 {
		o.Began = o.Began || slices.Contains(p.began, o.Zone)
	}
	switch {
	case !o.asked || o.fits:
		return rule.None
	case o.undecided:
		return rule.NoStore
	case o.Limit.Oversize(o.Cost):
		return rule.Oversize
	case o.Block > 0 && !o.Began:
		return rule.Blocked
	case o.starved:
		return rule.NoMemory
	}
	return rule.Capacity
}

// ends reports whether the request ends for a group, because an enforced zone or one of
// the group refuses it. Unless answered, only refusals without asking the store count.
func (p *plan) ends(group leakybucket.Shadow, answered bool) bool {
	if p.refused || group == 0 {
		return p.refused
	}
	for i := range p.outcomes {
		o := &p.outcomes[i]
		if o.Shadow == group && (o.Reason() != rule.None || answered && o.asked && !o.fits) {
			return true
		}
	}
	return false
}

// A Zone is a rule, and what runs of it.
type Zone struct {
	*rule.Rule
	Places   *Places // of requests that wait for their delay
	Reporter Reporter
}

// A Reporter counts and logs the outcomes of a zone. It must be safe for concurrent
// use.
type Reporter interface {
	// Decided is called once for each outcome, when it is final. header is that of the
	// response; it is nil if the zone marks none.
	Decided(o *Outcome, r *http.Request, now time.Time, header http.Header)

	// Logs reports whether the line of a refused request is to be in the access log.
	// Unlogged returns how many were not, since it was asked last.
	Logs(now time.Time) bool
	Unlogged() uint32

	// Exempted counts a request that the zone exempts, or does not limit. Keyless counts one
	// whose key lacks a part.
	Exempted()
	Keyless()

	// Settled counts a response that was known, and whether it earned a refund, or one that
	// does not say what the request cost.
	// FellBack counts a charge that was decided without the shared store.
	Settled(refunded, known bool)
	FellBack()

	// Failed warns that a matcher of this option has failed. If the zone is enforced, the
	// request fails.
	Failed(option string, err error, enforced bool)

	// ServedStatic warns that the upstream has answered a request that was taken for one of
	// a static file.
	ServedStatic(*http.Request)
}
