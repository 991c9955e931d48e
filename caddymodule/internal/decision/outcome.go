package decision

import (
	"math"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap/zapcore"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admission"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/expiring"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/inflight/pass"
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
// the zone decides. Once [Decide] has returned, only what it becomes is written, and Delay, by
// a wait for a slot. Requests keep outcomes in memory until their access log is written, so
// what follows from the rule is not repeated here.
type Outcome struct {
	Zone *Zone
	Key  string // of the bucket, without the zone

	terms  // zero if the zone has no bucket
	answer // of the store

	// Delay is how long the request is to wait, or would have to. Where that is none, it is
	// how long it has waited for a slot.
	Delay time.Duration

	Block time.Duration // the rest of the block; 0 if none runs

	// Turn is how the request takes turns for the slots of a zone with share; nil in
	// other zones.
	Turn *Turn

	// device is what device cookies tell of the client, or nil if the zone trusts no
	// devices or the request names no account.
	device *knownDevice

	// What becomes of the outcome after the decision:

	settledCost float64          // the corrected cost, in units
	code        supportcode.Code // names the refusal, for support; zero if the zone gives none
	unlogged    uint32           // how many refusals of the zone were kept out of the access log before this line

	// ruling is what the zone decided, and why it refused, in the lower half. What becomes of
	// that is in the upper half; 0 if it stands. It is atomic, because a simulation may end in
	// another goroutine while the request is served. So is correction, the state of that.
	ruling, correction uint32

	jitter float32 // how much is added to Retry-After, as a fraction

	ended      admission.Why // how the wait for its slots has ended
	simulating bool          // the simulation of its group reports the outcome
	settled    bool          // the charge was corrected by the response

	// What the decision followed from:

	Shadow  leakybucket.Shadow // the group in which the zone only counts for this key; 0 if it is enforced
	Began   bool               // this request began the block
	probe   bool               // the store is asked, and pours nothing
	starved bool               // there was no memory to read the body that the zone wanted
	noSlot  bool               // no slot was free before the store was asked
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

// later is a bit of the upper half of a ruling, which tells it from none.
const later = 1 << 31

// decide sets what the zone decides. It must be called before others know the outcome.
func (o *Outcome) decide(d Decision, why rule.Reason) {
	atomic.StoreUint32(&o.ruling, uint32(d)<<8|uint32(why))
}

// become replaces what the zone decided. The first to do so wins: an enforced zone that
// refuses the request, or the simulation of a group in shadow.
func (o *Outcome) become(d Decision, why rule.Reason) {
	if decided := atomic.LoadUint32(&o.ruling); decided < later {
		atomic.CompareAndSwapUint32(&o.ruling, decided, decided|later|uint32(d)<<24|uint32(why)<<16)
	}
}

// Ruling returns the zone's decision, and the reason of a refusal. Both are of one
// moment: a simulation may replace them together.
func (o *Outcome) Ruling() (Decision, rule.Reason) {
	both := atomic.LoadUint32(&o.ruling)
	if both >= later {
		both = (both &^ later) >> 16
	}
	return Decision(both >> 8 & 0xff), rule.Reason(both & 0xff)
}

// Decision returns the zone's decision.
func (o *Outcome) Decision() Decision {
	d, _ := o.Ruling()
	return d
}

// Reason returns why the zone refused, or None.
func (o *Outcome) Reason() rule.Reason {
	_, why := o.Ruling()
	return why
}

// Refuse decides that the zone refuses. In shadow, that is only counted.
func (o *Outcome) Refuse(why rule.Reason) {
	if o.Shadow != 0 {
		o.decide(ShadowRefused, why)
	} else {
		o.decide(Refused, why)
	}
}

// ClientIP returns the client's address. It is invalid if the request has none, and for
// outcomes of a simulation, unless the address is the key: these are reported when the
// request is gone.
func (o *Outcome) ClientIP(r *http.Request) netip.Addr {
	text := o.Key
	if !o.simulating {
		text, _ = caddyhttp.GetVar(r.Context(), caddyhttp.ClientIPVarKey).(string)
	}
	addr, _ := netip.ParseAddr(text)
	return addr
}

// Left reports whether the client left while the request waited for its slots.
func (o *Outcome) Left() bool { return o.ended == admission.Left }

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

// log adds what a request's turn was like.
func (t *Turn) log(enc zapcore.ObjectEncoder) {
	enc.AddString("rank", t.Rank.String())
	if t.Standing.Why != "" {
		enc.AddString("why", t.Standing.Why)
	}
	if digest := t.Standing.Client.Digest(); digest != "" {
		enc.AddString("pass", digest)
	}
	if met := t.Met(); met.Predicted > 0 {
		enc.AddInt("ahead", met.Ahead)
		enc.AddFloat64("predicted", readable(met.Predicted.Seconds()))
	}
	if held, over := t.Held(); over {
		enc.AddFloat64("seconds", readable(held.Seconds()))
	}
}

// MarshalLogObject implements zapcore.ObjectMarshaler: one zone's part of the field in
// the access log.
func (o *Outcome) MarshalLogObject(enc zapcore.ObjectEncoder) error {
	decision, why := o.Ruling()
	enc.AddString("zone", o.Zone.Name)
	enc.AddString("decision", decision.String())
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
	if o.Turn != nil {
		o.Turn.log(enc)
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
	if o.Turn != nil {
		o.jitter = rand.Float32()
	} else if o.Zone.RetryJitter > 0 {
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
	case p.ends(o.Shadow, true) || o.asked && o.undecided && o.Zone.InFlight == 0: // slots need no store
		return
	}
	o.Delay = delay
	switch {
	case delay == 0:
		o.decide(Admitted, rule.None)
	case o.Shadow != 0:
		o.decide(ShadowDelayed, rule.None)
	default:
		o.decide(Delayed, rule.None)
	}
}

// judge returns why a zone refuses after the store was asked, or None.
func (p *plan) judge(o *Outcome) rule.Reason {
	if o.Block != 0 {
		o.Began = o.Began || slices.Contains(p.began, o.Zone)
	}
	switch {
	case o.asked && !o.fits:
	case o.noSlot:
		return rule.InFlight
	default:
		return rule.None
	}
	switch {
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
		if o.Shadow == group && (o.Reason() != rule.None || answered && (o.noSlot || o.asked && !o.fits)) {
			return true
		}
	}
	return false
}

// A Zone is a rule, and what runs of it.
type Zone struct {
	*rule.Rule

	// Enforced and Simulated hold the zone's queues and slots. They outlive configs:
	// a reload changes limits, and waiting requests keep their places.
	Enforced, Simulated *admission.Zone

	Reporter Reporter

	members *expiring.Map[memberPlace, struct{}] // whose places were taken in the last hour
}

// NewZone returns the zone of a rule.
func NewZone(r *rule.Rule, enforced, simulated *admission.Zone, reporter Reporter) *Zone {
	z := &Zone{Rule: r, Enforced: enforced, Simulated: simulated, Reporter: reporter}
	if r.Ranks.LearnsMembers() {
		z.members = expiring.New[memberPlace, struct{}](mostMemberPlaces)
	}
	return z
}

// A Reporter counts and logs the outcomes of a zone. It must be safe for concurrent
// use.
type Reporter interface {
	// Decided is called once for each outcome, when it is final. now is zero if nobody
	// needed the time yet. header is that of the response; it is nil for outcomes of
	// simulations, which may end after the response.
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

	// CountPass counts what has happened to the pass of a client, if anything has. Answered
	// is called with the same for each response of a zone that learns from them who is a
	// member. The client is new if it came without cookies.
	CountPass(pass.Event)
	Answered(isNew bool, e pass.Event)
}
