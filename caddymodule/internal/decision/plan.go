package decision

import (
	"iter"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/blocklist"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/body"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/settlement"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	bucketkey "github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

// A Plan collects the charges of one handler's zones for a request, and the store's
// decisions. Conclude turns it into a [Result]. It is for one goroutine. Release
// returns its memory to a pool, and must be called last.
type Plan struct {
	Subject

	// Server serves the request. If nil, it is looked up in the request's context.
	Server *caddyhttp.Server

	// Buffers are memory for the keys of the zones.
	Buffers Buffers

	earlier   *Result // of the handlers that the request has passed, or nil
	zones     int     // how many the handler has
	alone     *Result // holds the outcomes, if the handler has one zone
	outcomes  []Outcome
	pooled    []Outcome // memory for them otherwise
	charges   []leakybucket.Charge
	of        []int // the index of each charge's outcome
	decisions []leakybucket.Decision
	requested []leakybucket.Charge // the charges before the store was asked, if one is of a device

	began       []*Rule // shadow zones whose block began with the probe
	static      []Exemption
	measured    []*settlement.Rule // that measure the work of the request
	unread      int64              // how much of the body must be read to know all, in bytes
	refused     bool               // an enforced zone refuses
	ended       bool               // a zone in shadow would refuse without asking the store
	slotMissing bool               // an enforced zone has no free slot
	waits       bool               // in some zone requests wait, and take slots after that
}

var plans = sync.Pool{New: func() any { return new(Plan) }}

// NewPlan returns a plan for a request and a handler with so many zones.
func NewPlan(r *http.Request, zones int) *Plan {
	p := plans.Get().(*Plan)
	p.look(r)
	p.earlier, _ = p.vars[resultVar].(*Result)
	p.zones, p.outcomes = zones, p.pooled
	return p
}

// Release returns the memory of the plan to the pool. Nothing of the request stays in
// it.
func (p *Plan) Release() {
	if p.alone != nil {
		p.outcomes = p.pooled // and the result keeps its own
	}
	p.reset()
	p.Server, p.earlier, p.alone, p.outcomes, p.pooled = nil, nil, nil, nil, p.outcomes
	clear(p.began)
	p.began, p.refused = p.began[:0], false
	p.forget()
	clear(p.Buffers.name[:cap(p.Buffers.name)])
	plans.Put(p)
}

// reset removes all charges and outcomes.
func (p *Plan) reset() {
	clear(p.outcomes)
	clear(p.charges)
	clear(p.requested)
	clear(p.Buffers.parts[:cap(p.Buffers.parts)]) // beyond its length is a key that was given up
	clear(p.static)
	clear(p.measured)
	p.outcomes, p.charges, p.of = p.outcomes[:0], p.charges[:0], p.of[:0]
	p.requested, p.static, p.measured = p.requested[:0], p.static[:0], p.measured[:0]
	p.unread, p.waits, p.slotMissing, p.ended = 0, false, false, false
}

// Unread returns how much of the body must be read to know all costs and keys, in
// bytes. Zero means that nothing must be read.
func (p *Plan) Unread() int64 { return p.unread }

// Refused reports whether an enforced zone refuses the request, as far as is known.
func (p *Plan) Refused() bool { return p.refused }

// Outcomes returns the outcomes so far. They are valid until [Plan.Release].
func (p *Plan) Outcomes() []Outcome { return p.outcomes }

// Body returns the reader that has replaced the request's body, or nil.
func (p *Plan) Body() *body.Ahead { return p.reader }

// Decided reports whether the zone of a name has decided about the request already: in
// this plan, or in an earlier handler.
func (p *Plan) Decided(zone string) bool {
	for i := range p.outcomes {
		if p.outcomes[i].Rule.Name == zone {
			return true
		}
	}
	return p.earlier.Decided(zone)
}

// Evaluate adds the charge of a zone if the zone concerns the request, or its refusal if
// that needs no store. The store is not asked about charges for which known returns a
// block. If known is nil, no block is known.
func (p *Plan) Evaluate(r *Rule, known func(*leakybucket.Charge) (blocklist.Block, bool)) error {
	concerned, static, err := r.Concerns(&p.Subject)
	if static {
		p.static = append(p.static, p.exempt(r))
	}
	if err != nil || !concerned {
		return err
	}
	p.measure(r.Settle)
	if !p.read && r.Key.FromBody() {
		p.unread = max(p.unread, r.Cost.MaxBody)
		return nil
	}
	k, why, skip := r.bucket(&p.Subject, &p.Buffers)
	if skip {
		return nil
	}
	shadow := r.shadow(&p.Subject, k.name)
	switch {
	case shadow != 0 && p.earlier.ended(shadow):
		if r.Share != nil {
			o := p.add(r, k.name, shadow)
			o.Turn, o.dropped = r.turn(&p.Subject, &p.Buffers), true // it only watches
		}
		return nil
	case p.decideByKey(r, &k, why, shadow):
		return nil
	case r.Bucketless():
		p.add(r, k.name, shadow).Turn = r.turn(&p.Subject, &p.Buffers)
		p.waits = p.waits || r.LetsWait()
		return nil
	}
	return p.charge(r, &k, shadow, known)
}

// decideByKey reports whether the zone refuses the request, or has no limit for it,
// because of its key alone. If it refuses, that is added.
func (p *Plan) decideByKey(r *Rule, k *key, why Reason, shadow leakybucket.Shadow) bool {
	switch {
	case why != None:
	case (k.address || r.Share != nil) && early(p.Request):
		// The address may be forged. Turns and ranks may follow from it, whatever the key.
		if shadow != 0 {
			return true
		}
		why = EarlyData
	case k.rule == bucketkey.Unlimited:
		return true
	case k.rule == bucketkey.Deny:
		why = Denied
	default:
		return false
	}
	p.add(r, k.name, shadow)
	p.refuse(why)
	return true
}

// charge adds the charge of a zone, or the refusal by a block that is known to run.
func (p *Plan) charge(r *Rule, k *key, shadow leakybucket.Shadow, known func(*leakybucket.Charge) (blocklist.Block, bool)) error {
	cost, wantsBody, readsBody, err := r.Cost.charged(&p.Subject, k.limit)
	if err != nil {
		return failed("cost", err)
	}
	o := p.add(r, k.name, shadow)
	p.charges = append(p.charges, leakybucket.Charge{}) // which is filled in place, too
	c := &p.charges[len(p.charges)-1]
	r.charge(c, k, o.Shadow, cost)
	o.setCharge(c)
	if client := r.deviceClient(&p.Subject, k); client != nil {
		o.device = &knownDevice{client: client}
		o.chargeDevice()
		c.Key = o.Key
	}
	if known != nil {
		block, runs := known(c)
		if runs && o.chargesDevice() {
			o.chargeAccount()
			c.Key = o.Key
			block, runs = known(c)
		}
		if runs {
			*c = leakybucket.Charge{}
			p.charges = p.charges[:len(p.charges)-1]
			p.refuseBlocked(block)
			return nil
		}
	}
	o.starved = p.starved && (r.Key.FromBody() || readsBody)
	if wantsBody {
		p.unread = max(p.unread, r.Cost.MaxBody)
	}
	o.asked = true
	p.waits = p.waits || r.LetsWait()
	p.of = append(p.of, len(p.outcomes)-1)
	return nil
}

// measure notes that a zone measures for how long the request keeps workers busy, also if
// it is not charged there: it makes the shares of others smaller.
func (p *Plan) measure(rule *settlement.Rule) {
	if rule == nil || rule.Workers == 0 {
		return
	}
	for res := p.earlier; res != nil; res = res.next {
		if slices.ContainsFunc(res.Measured(), func(other *settlement.Rule) bool { return other.Meter == rule.Meter }) {
			return
		}
	}
	p.measured = append(p.measured, rule)
}

// An Exemption is a zone that exempts a request as a static file.
type Exemption struct {
	Rule *Rule

	// Charge is the charge of the request if the upstream answers it after all.
	// Charged is false if the zone would charge nothing.
	Charge  leakybucket.Charge
	Charged bool
}

// exempt returns the exemption with what the zone would charge. That must be computed
// now, because later handlers may rewrite the request.
func (p *Plan) exempt(r *Rule) Exemption {
	e := Exemption{Rule: r}
	k, why, skip := r.bucket(&p.Subject, &p.Buffers)
	if r.Bucketless() || why != None || skip || k.rule != bucketkey.Limited {
		return e
	}
	cost, _, _, err := r.Cost.charged(&p.Subject, k.limit)
	if err != nil {
		return e
	}
	r.charge(&e.Charge, &k, r.shadow(&p.Subject, k.name), cost)
	e.Charged = true
	e.Charge.Debt = 0 // nothing was reserved that a response corrects
	return e
}

// add appends the outcome of a zone. It is filled in place, because outcomes are large.
// That of the only zone is filled where it stays.
func (p *Plan) add(r *Rule, key string, shadow leakybucket.Shadow) *Outcome {
	if p.zones == 1 && p.alone == nil {
		p.alone = loneResult(r)
		p.outcomes = p.alone.Outcomes[:0]
	}
	n := len(p.outcomes)
	if n < cap(p.outcomes) {
		p.outcomes = p.outcomes[:n+1] // what is behind the outcomes is clear
	} else {
		p.outcomes = append(p.outcomes, Outcome{})
	}
	o := &p.outcomes[n]
	if shadow == ShadowOwn {
		shadow += leakybucket.Shadow(min(n, math.MaxUint8-int(ShadowOwn))) // which no other zone has
	}
	o.Request, o.Rule, o.Key, o.Shadow = p.Request, r, key, shadow
	return o
}

// refuse makes the last outcome a refusal without asking a store.
func (p *Plan) refuse(why Reason) {
	o := &p.outcomes[len(p.outcomes)-1]
	o.Refuse(why)
	p.refused, p.ended = p.refused || o.Shadow == 0, p.ended || o.Shadow != 0
}

// Fail records that a matcher of a zone has failed for the request, and reports whether
// the zone is enforced, so that the request fails. Then the outcome is reported. For a
// group of shadow the request fails once, as enforcement asks no zone after that.
func (p *Plan) Fail(r *Rule) (enforced bool) {
	k, _, _ := r.bucket(&p.Subject, &p.Buffers)
	shadow := r.shadow(&p.Subject, k.name)
	if shadow != 0 && shadow < ShadowOwn && p.ends(shadow, false) {
		return false
	}
	o := p.add(r, k.name, shadow)
	p.refuse(Error)
	if o.Shadow == 0 {
		o.report(time.Now())
	}
	return o.Shadow == 0
}

// refuseBlocked makes the last outcome a refusal by a block that is known to run.
func (p *Plan) refuseBlocked(b blocklist.Block) {
	o := &p.outcomes[len(p.outcomes)-1]
	now := o.admissionZone().Now()
	seen := leakybucket.State{Level: b.Level, Leak: o.Limit.Leak}
	o.was = o.Limit.Level(seen, leakybucket.Instant(now.Sub(b.Seen).Microseconds()))
	o.Block = b.Until.Sub(now)
	p.refuse(Blocked)
}

// RefuseBlocked refuses the request because of a block that is known to run. The charge
// must come from [Rule.BlockedBucket].
func (p *Plan) RefuseBlocked(r *Rule, c *leakybucket.Charge, b blocklist.Block) {
	p.add(r, c.Key, c.Shadow).setCharge(c)
	p.refuseBlocked(b)
}

// RefuseBanned refuses the request because its client is banned for so long, and counts
// that for a zone, which need not match the request.
func (p *Plan) RefuseBanned(r *Rule, rest time.Duration) {
	p.add(r, r.network(&p.Subject).Addr().String(), r.Shadow).Block = rest
	p.refuse(Banned)
}

// BlockedBucket returns a charge that names the bucket with the client's block,
// whether or not the zone matches the request. It returns false for requests that the
// zone can never block. If device is not empty, it is the key of the client's device,
// and the request is blocked only if both buckets are.
func (r *Rule) BlockedBucket(s *Subject, b *Buffers) (c leakybucket.Charge, device string, can bool) {
	if r.Block == nil {
		return c, "", false
	}
	if exempt, err := r.Exempts(s); err != nil || exempt {
		return c, "", false
	}
	k, why, skip := r.bucket(s, b)
	if why != None || skip || k.rule != bucketkey.Limited {
		return c, "", false
	}
	if client := r.deviceClient(s, &k); client != nil {
		device = deviceKey(k.name, client)
	}
	r.charge(&c, &k, r.shadow(s, k.name), 0)
	return c, device, true
}

// Bucket returns the name of the bucket that the zone charges a request to, without
// the zone. It returns false if it charges none.
func (r *Rule) Bucket(s *Subject, b *Buffers) (name string, charged bool) {
	k, why, skip := r.bucket(s, b)
	return k.name, why == None && !skip && k.rule == bucketkey.Limited
}

// Probe turns all charges into probes, which pour nothing.
func (p *Plan) Probe() {
	for i := range p.charges {
		p.charges[i].Probe = true
	}
}

// CheckSlots finds out whether slots are free, and takes none. If an enforced zone
// has no free slot, all charges become probes. If a shadow zone has none, those of its
// group do. If requests may wait, it only looks whether they would be refused at
// once, because slots are taken after the wait.
func (p *Plan) CheckSlots() {
	if p.waits {
		p.checkTurns()
		return
	}
	for i := range p.outcomes {
		o := &p.outcomes[i]
		if o.Rule.InFlight == 0 || o.Reason() != None || o.admissionZone().Vacant(o.Key, o.Rule.InFlight) {
			continue
		}
		o.noSlot = true
		if o.Shadow == 0 {
			p.slotMissing = true
			continue
		}
		for j := range p.charges {
			if p.charges[j].Shadow == o.Shadow {
				p.charges[j].Probe = true
			}
		}
	}
	if p.slotMissing {
		p.Probe()
	}
}

// SetDecisions records the store's decisions.
func (p *Plan) SetDecisions() {
	for i, of := range p.of {
		o := &p.outcomes[of]
		o.setAnswer(&p.charges[i], &p.decisions[i])
		p.refused = p.refused || o.Shadow == 0 && !o.fit
	}
	p.refused = p.refused || p.slotMissing
}

// Decisions iterates over the charges that the store was asked about, and its decisions.
func (p *Plan) Decisions() iter.Seq2[*leakybucket.Charge, *leakybucket.Decision] {
	return func(yield func(*leakybucket.Charge, *leakybucket.Decision) bool) {
		for i := range p.of {
			if !yield(&p.charges[i], &p.decisions[i]) {
				return
			}
		}
	}
}

// DropCharges drops the charges after the store and its fallback have failed. Their
// zones count as if they had no bucket.
func (p *Plan) DropCharges() {
	for i := range p.outcomes {
		if o := &p.outcomes[i]; o.asked {
			o.asked = false
			o.setAnswer(new(leakybucket.Charge), &leakybucket.Decision{Undecided: true})
			o.dropped = o.Rule.InFlight == 0 // slots need no store
		}
	}
	p.clearCharges()
}

func (p *Plan) clearCharges() {
	clear(p.charges)
	p.charges, p.of = p.charges[:0], p.of[:0]
}

// Charges returns the charges to ask the store about, and memory for its decisions.
// If a zone refuses without asking, there are none of its group, and if it is enforced
// none at all: a refused request must not be charged by other zones.
func (p *Plan) Charges() ([]leakybucket.Charge, []leakybucket.Decision) {
	if p.refused || p.ended {
		p.dropEnded()
	}
	p.decisions = append(p.decisions[:0], make([]leakybucket.Decision, len(p.charges))...)
	p.keepCharges()
	return p.charges, p.decisions
}

// dropEnded drops the charges of groups for which the request has ended.
func (p *Plan) dropEnded() {
	n := 0
	for i, of := range p.of {
		if p.ends(p.charges[i].Shadow, false) {
			p.outcomes[of].asked = false
			continue
		}
		p.charges[n], p.of[n] = p.charges[i], of
		n++
	}
	clear(p.charges[n:])
	p.charges, p.of = p.charges[:n], p.of[:n]
}

// ReadBody reads as much of the body as the zones want into a memory, and removes all
// charges. The zones must be asked again.
func (p *Plan) ReadBody(memory *body.Memory) {
	for _, of := range p.of {
		if o := &p.outcomes[of]; o.Shadow != 0 && o.Began {
			p.began = append(p.began, o.Rule)
		}
	}
	most := p.unread
	p.reset()
	p.readBody(memory, most)
}

// Conclude returns the outcomes in the zones of this handler, or nil if none of them
// is concerned. It also publishes them to placeholders and to the access log.
func (p *Plan) Conclude() *Result {
	corrected := false
	for i := range p.outcomes {
		o := &p.outcomes[i]
		p.conclude(o)
		corrected = corrected || o.holds() || o.settles()
	}
	if corrected {
		p.keepReservations()
	}
	kept := 0
	for i := range p.outcomes {
		if o := &p.outcomes[i]; o.Decision() != Withdrawn || o.watches() && !p.refused {
			if kept < i {
				p.outcomes[kept] = p.outcomes[i]
			}
			kept++
		}
	}
	clear(p.outcomes[kept:])
	p.outcomes = p.outcomes[:kept]
	if len(p.outcomes) == 0 && len(p.static) == 0 && len(p.measured) == 0 {
		if p.earlier == nil && p.replacer != nil {
			p.replacer.Map(uncharged(p.Request.Context()))
		}
		return nil
	}
	return newResult(p)
}

// keepReservations keeps the charges and the store's decisions, because they may be
// corrected or given back.
func (p *Plan) keepReservations() {
	var room []reservation
	for i, of := range p.of {
		o := &p.outcomes[of]
		if o.reservation == nil {
			if len(room) == 0 {
				room = make([]reservation, len(p.of)-i)
			}
			o.reservation, room = &room[0], room[1:]
		}
		o.reservation.charge, o.reservation.was = p.charges[i], p.decisions[i]
	}
}

// conclude sets the decision of one outcome.
func (p *Plan) conclude(o *Outcome) {
	if o.Turn != nil {
		o.jitter = rand.Float32()
	} else if o.Rule.RetryJitter > 0 {
		o.jitter = float32(rand.Float64() * o.Rule.RetryJitter)
	}
	if o.Reason() != None {
		return // known without asking
	}
	if o.dropped {
		return // the zone counts as not asked
	}
	delay := o.Delay
	o.Delay = 0
	switch why := p.judge(o); {
	case why != None:
		o.Refuse(why)
		return
	case p.ends(o.Shadow, true) || o.asked && o.undecided && o.Rule.InFlight == 0: // slots need no store
		return
	}
	o.Delay = delay
	switch {
	case delay == 0:
		o.Set(Admitted, None)
	case o.Shadow != 0:
		o.Set(ShadowDelayed, None)
	default:
		o.Set(Delayed, None)
	}
}

// judge returns why a zone refuses after the store was asked, or None.
func (p *Plan) judge(o *Outcome) Reason {
	if !o.asked {
		if o.noSlot {
			return InFlight
		}
		return None
	}
	if o.Block != 0 {
		o.Began = o.Began || slices.Contains(p.began, o.Rule)
	}
	switch {
	case o.fit && o.noSlot:
		return InFlight
	case o.fit:
		return None
	case o.undecided:
		return NoStore
	case o.Limit.Oversize(o.Cost):
		return Oversize
	case o.Block > 0 && !o.Began:
		return Blocked
	case o.starved:
		return NoMemory
	}
	return Capacity
}
