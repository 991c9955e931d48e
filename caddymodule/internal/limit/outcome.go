package limit

import (
	"math"
	"net/http"
	"time"

	"go.uber.org/zap/zapcore"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/refusal"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/supportcode"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

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
// outcome is written. Requests keep outcomes in memory until their access log is written.
type Outcome struct {
	Zone               *Zone
	leakybucket.Charge                      // with a Limit of 0 if the zone has none for the key
	Answer             leakybucket.Decision // zero, but for the level under a known block, if the store was not asked

	Delay time.Duration // how long the request is to wait, or would have to
	Block time.Duration // the rest of the block; 0 if none runs

	device *deviceClient // what device cookies tell; nil if the zone trusts no devices, or the request names no account

	// What becomes of the outcome after the decision:

	settledCost float64          // the corrected cost, in units
	code        supportcode.Code // names the refusal, for support; zero if the zone gives none
	unlogged    uint32           // how many refusals of the zone were kept out of the access log before this line

	decision Decision
	reason   Reason // of a refusal

	asked   bool // the store was
	starved bool // there was no room for the body that the zone wanted
	exiting bool // the process is about to end, so the request could not wait
	settled bool // the charge was corrected by the response
}

// Decision returns the zone's decision.
func (o *Outcome) Decision() Decision { return o.decision }

// Reason returns why the zone refused, or None.
func (o *Outcome) Reason() Reason { return o.reason }

// Began reports whether the request began the block.
func (o *Outcome) Began() bool { return o.Answer.Began }

// Refuse decides that the zone refuses. In shadow, that is only counted.
func (o *Outcome) Refuse(why Reason) {
	if o.decision, o.reason = Refused, why; o.Shadow {
		o.decision = ShadowRefused
	}
}

// Level returns how full the bucket is after the decision, in units.
func (o *Outcome) Level() float64 {
	if o.reason != None {
		return o.Answer.Level
	}
	return LevelAfter(&o.Charge, &o.Answer)
}

// LevelAfter returns how full a bucket is after a charge, in units.
func LevelAfter(c *leakybucket.Charge, d *leakybucket.Decision) float64 {
	if d.Poured {
		return d.Level + c.Cost
	}
	return d.Level
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

// outcome makes an empty outcome what the zone of a claim decides, by the store's answer. It
// returns false if that is nothing.
func (a *asking) outcome(o *Outcome, i int) bool {
	cl, d := &a.claims[i], &a.decisions[i]
	z := cl.zone
	o.Zone, o.Charge, o.Answer, o.Block, o.device, o.asked, o.starved = z, a.charges[i], *d, cl.block, cl.device, cl.asked, cl.starved
	if d.BlockedUntil != 0 {
		o.Block = d.BlockedUntil.Sub(d.At)
	}
	switch {
	case cl.refusal != None:
		o.Refuse(cl.refusal)
	case !cl.asked:
	case !d.Fits:
		o.Refuse(o.overflow())
	case d.Undecided, a.refused, a.ends && o.Shadow:
		// It is skipped.
	default:
		if o.decision = Admitted; z.Delay != nil {
			o.Delay = o.Charge.Delay(d)
		}
		switch {
		case o.Delay > 0 && o.Shadow:
			o.decision = ShadowDelayed
		case o.Delay > 0:
			o.decision = Delayed
		}
	}
	return o.decision != Skipped
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
	// response; it is nil if the zone marks none.
	Decided(o *Outcome, r *http.Request, now time.Time, header http.Header)

	// Admitted counts a charge that fits, of a request of which nobody wants to know more.
	Admitted(c *leakybucket.Charge, d *leakybucket.Decision, r *http.Request)

	// Logs reports whether the line of a refused request is to be in the access log.
	// Unlogged returns how many were not, since it was asked last.
	Logs(now time.Time) bool
	Unlogged() uint32

	// Exempted counts a request that the zone exempts, or does not limit. Keyless counts one
	// whose key lacks a part.
	Exempted()
	Keyless()

	// Settled counts a response of this status, which is 0 if it is not known, and whether it
	// earned a refund, or does not say what the request cost.
	// TrustsDevice counts a device cookie that was given.
	// FellBack counts a charge that was decided without the shared store.
	Settled(status int, refunded, known bool)
	TrustsDevice()
	FellBack()

	// Failed warns that a matcher of this option has failed. If the zone is enforced, the
	// request fails.
	Failed(option string, err error, enforced bool)

	// ServedStatic warns that the upstream has answered a request that was taken for one of
	// a static file.
	ServedStatic(*http.Request)
}
