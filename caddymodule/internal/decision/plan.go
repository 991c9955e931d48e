package decision

import (
	"math"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/blocked"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/rule"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/settlement"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	bucketkey "github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

// A plan collects the charges of one handler's zones for a request, and the store's
// decisions. Its conclusion is a [Verdict]. It is for one goroutine. release returns its
// memory to a pool, and must be called last.
type plan struct {
	rule.Subject
	Buffers rule.Buffers // memory for the keys of the zones

	env       Env
	server    *caddyhttp.Server
	zones     []*Zone
	failed    error    // of the handler's matcher
	preview   bool     // nothing is known but the request
	again     bool     // the zones are asked once more, since the body is known
	earlier   *Verdict // of the handlers that the request has passed, or nil
	alone     *Verdict // holds the outcomes, if the handler has one zone
	outcomes  []Outcome
	pooled    []Outcome // memory for them otherwise
	charges   []leakybucket.Charge
	of        []int // the index of each charge's outcome
	decisions []leakybucket.Decision
	requested []leakybucket.Charge // the charges before the store was asked, if one is of a device

	began       []*Zone // shadow zones whose block began with the probe
	static      []Exemption
	measured    []settlement.Metered // that measure the work of the request
	unread      int64                // how much of the body must be read to know all, in bytes
	refused     bool                 // an enforced zone refuses
	ended       bool                 // a zone in shadow would refuse without asking the store
	slotMissing bool                 // an enforced zone has no free slot
	waits       bool                 // in some zone requests wait, and take slots after that
}

var planPool = sync.Pool{New: func() any { return new(plan) }}

func newPlan(q Request, env Env) *plan {
	p := planPool.Get().(*plan)
	p.Look(q.Request)
	p.Overrides = env.Overrides()
	p.env, p.server, p.zones, p.failed = env, q.Server, q.Zones, q.Failed
	p.earlier, _ = p.Vars[verdictVar].(*Verdict)
	p.outcomes = p.pooled
	return p
}

// release returns the memory of the plan to the pool. Nothing of the request stays in
// it.
func (p *plan) release() {
	if p.alone != nil {
		p.outcomes = p.pooled // and the verdict keeps its own
	}
	p.reset()
	p.env, p.server, p.zones, p.failed, p.preview, p.again = nil, nil, nil, nil, false, false
	p.earlier, p.alone, p.outcomes, p.pooled = nil, nil, nil, p.outcomes
	clear(p.began)
	p.began, p.refused = p.began[:0], false
	p.Forget()
	p.Buffers.Clear()
	planPool.Put(p)
}

// reset removes all charges and outcomes.
func (p *plan) reset() {
	clear(p.outcomes)
	clear(p.charges)
	clear(p.requested)
	clear(p.static)
	clear(p.measured)
	p.outcomes, p.charges, p.of = p.outcomes[:0], p.charges[:0], p.of[:0]
	p.requested, p.static, p.measured = p.requested[:0], p.static[:0], p.measured[:0]
	p.unread, p.waits, p.slotMissing, p.ended = 0, false, false, false
}

// decided reports whether a zone has decided about the request already: in this plan, or
// in an earlier handler.
func (p *plan) decided(z *Zone) bool {
	for i := range p.outcomes {
		if p.outcomes[i].Zone == z {
			return true
		}
	}
	return p.earlier.Decided(z)
}

// ask adds the charge of a zone if the zone concerns the request, or its refusal if that
// needs no store.
func (p *plan) ask(z *Zone) error {
	concern, err := z.Concerns(&p.Subject)
	if concern != rule.Concerned {
		p.spare(z, concern)
		return err
	}
	if z.Exempt != nil && p.SparedAsSent && !p.again {
		p.met(z, ExemptAsSent)
	}
	p.measure(z)
	if z.WantsBody(&p.Subject) {
		p.unread = max(p.unread, z.Cost.MaxBody)
		return nil
	}
	k, why, skip := z.Find(&p.Subject, &p.Buffers)
	if k.Lacking && (!p.again || z.Key.FromBody()) {
		p.met(z, Keyless)
	}
	if skip {
		return nil
	}
	shadow := z.GroupOf(&p.Subject, k.Name)
	switch {
	case shadow != 0 && p.earlier.ended(shadow):
		if z.Share != nil {
			o := p.add(z, k.Name, shadow)
			o.Turn, o.dropped = turnOf(z.Rule, &p.Subject, &p.Buffers), true // it only watches
		}
		return nil
	case p.decideByKey(z, &k, why, shadow):
		return nil
	case z.SlotsOnly():
		p.add(z, k.Name, shadow).Turn = turnOf(z.Rule, &p.Subject, &p.Buffers)
		p.waits = p.waits || z.LetsWait()
		return nil
	}
	return p.charge(z, &k, shadow)
}

// spare notes that a zone does not charge the request.
func (p *plan) spare(z *Zone, concern rule.Concern) {
	if concern == rule.Static {
		p.static = append(p.static, p.exempt(z))
	}
	switch {
	case p.again: // and noted before
	case concern == rule.Exempted:
		p.met(z, Exempt)
	case concern == rule.Static:
		p.met(z, NotLimited)
	}
}

// met tells the zone's Reporter of the request, unless that is only asked about.
func (p *plan) met(z *Zone, what Meeting) {
	if !p.preview {
		z.Reporter.Met(what, &p.Subject)
	}
}

// decideByKey reports whether the zone refuses the request, or has no limit for it,
// because of its key alone. If it refuses, that is added.
func (p *plan) decideByKey(z *Zone, k *rule.Bucket, why rule.Reason, shadow leakybucket.Shadow) bool {
	switch {
	case why != rule.None:
	case (k.Address || z.Share != nil) && p.Early():
		// The address may be forged. Turns and ranks may follow from it, whatever the key.
		if shadow != 0 {
			return true
		}
		why = rule.EarlyData
	case k.Rule == bucketkey.Unlimited:
		if !p.again || z.Key.FromBody() {
			p.met(z, NotLimited)
		}
		return true
	case k.Rule == bucketkey.Deny:
		why = rule.Denied
	default:
		return false
	}
	p.add(z, k.Name, shadow)
	p.refuse(why)
	return true
}

// charge adds the charge of a zone, or the refusal by a block that is known to run.
func (p *plan) charge(z *Zone, k *rule.Bucket, shadow leakybucket.Shadow) error {
	cost, wantsBody, readsBody, err := z.Cost.Charged(&p.Subject, k.Limit)
	if err != nil {
		return err
	}
	o := p.add(z, k.Name, shadow)
	p.charges = append(p.charges, leakybucket.Charge{}) // which is filled in place, too
	c := &p.charges[len(p.charges)-1]
	z.Charge(c, k, o.Shadow, cost)
	o.setCharge(c)
	if client := z.DeviceClient(&p.Subject, k); client != nil {
		o.device = &knownDevice{client: client}
		o.chargeDevice()
		c.Key = o.Key
	}
	if !p.preview {
		block, runs := p.env.KnownBlock(c)
		if runs && o.chargesDevice() {
			o.chargeAccount()
			c.Key = o.Key
			block, runs = p.env.KnownBlock(c)
		}
		if runs {
			*c = leakybucket.Charge{}
			p.charges = p.charges[:len(p.charges)-1]
			p.refuseBlocked(block)
			return nil
		}
	}
	o.starved = p.Starved && (z.Key.FromBody() || readsBody)
	if wantsBody {
		p.unread = max(p.unread, z.Cost.MaxBody)
	}
	o.asked = true
	p.waits = p.waits || z.LetsWait()
	p.of = append(p.of, len(p.outcomes)-1)
	return nil
}

// measure notes that a zone measures for how long the request keeps workers busy, also if
// it is not charged there: it makes the shares of others smaller.
func (p *plan) measure(z *Zone) {
	if z.Settle == nil || z.Settle.Workers == 0 {
		return
	}
	for v := p.earlier; v != nil; v = v.next {
		if slices.ContainsFunc(v.Measured(), func(m settlement.Metered) bool { return m.Rule == z.Settle }) {
			return
		}
	}
	p.measured = append(p.measured, settlement.Metered{Rule: z.Settle, Meter: z.Meter})
}

// An Exemption is a zone that exempts a request as a static file.
type Exemption struct {
	Zone *Zone

	// Charge is the charge of the request if the upstream answers it after all.
	// Charged is false if the zone would charge nothing.
	Charge  leakybucket.Charge
	Charged bool
}

// exempt returns the exemption with what the zone would charge. That must be computed
// now, because later handlers may rewrite the request.
func (p *plan) exempt(z *Zone) Exemption {
	e := Exemption{Zone: z}
	k, why, skip := z.Find(&p.Subject, &p.Buffers)
	if z.SlotsOnly() || why != rule.None || skip || k.Rule != bucketkey.Limited {
		return e
	}
	cost, _, _, err := z.Cost.Charged(&p.Subject, k.Limit)
	if err != nil {
		return e
	}
	z.Charge(&e.Charge, &k, z.GroupOf(&p.Subject, k.Name), cost)
	e.Charged = true
	e.Charge.Debt = 0 // nothing was reserved that a response corrects
	return e
}

// add appends the outcome of a zone. It is filled in place, because outcomes are large.
// That of the only zone is filled where it stays.
func (p *plan) add(z *Zone, key string, shadow leakybucket.Shadow) *Outcome {
	if len(p.zones) == 1 && p.alone == nil {
		p.alone = loneVerdict(z.Rule)
		p.outcomes = p.alone.Outcomes[:0]
	}
	n := len(p.outcomes)
	if n < cap(p.outcomes) {
		p.outcomes = p.outcomes[:n+1] // what is behind the outcomes is clear
	} else {
		p.outcomes = append(p.outcomes, Outcome{})
	}
	o := &p.outcomes[n]
	if shadow == rule.ShadowOwn {
		shadow += leakybucket.Shadow(min(n, math.MaxUint8-int(rule.ShadowOwn))) // which no other zone has
	}
	o.Request, o.Zone, o.Key, o.Shadow = p.Request, z, key, shadow
	return o
}

// refuse makes the last outcome a refusal without asking a store.
func (p *plan) refuse(why rule.Reason) {
	o := &p.outcomes[len(p.outcomes)-1]
	o.Refuse(why)
	p.refused, p.ended = p.refused || o.Shadow == 0, p.ended || o.Shadow != 0
}

// refuseBlocked makes the last outcome a refusal by a block that is known to run.
func (p *plan) refuseBlocked(b blocked.Block) {
	o := &p.outcomes[len(p.outcomes)-1]
	now := o.admissionZone().Now()
	seen := leakybucket.State{Level: b.Level, Leak: o.Limit.Leak}
	o.levelBefore = o.Limit.Level(seen, leakybucket.Instant(now.Sub(b.Seen).Microseconds()))
	o.Block = b.Until.Sub(now)
	p.refuse(rule.Blocked)
}

// probe turns all charges into probes, which pour nothing.
func (p *plan) probe() {
	for i := range p.charges {
		p.charges[i].Probe = true
	}
}

// checkSlots finds out whether slots are free, and takes none. If an enforced zone
// has no free slot, all charges become probes. If a shadow zone has none, those of its
// group do. If requests may wait, it only looks whether they would be refused at
// once, because slots are taken after the wait.
func (p *plan) checkSlots() {
	if p.waits {
		p.checkTurns()
		return
	}
	for i := range p.outcomes {
		o := &p.outcomes[i]
		if o.Zone.InFlight == 0 || o.Reason() != rule.None || o.admissionZone().Vacant(o.Key, o.Zone.InFlight) {
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
		p.probe()
	}
}

// setDecisions records the store's decisions.
func (p *plan) setDecisions() {
	for i, of := range p.of {
		o := &p.outcomes[of]
		o.setAnswer(&p.charges[i], &p.decisions[i])
		p.refused = p.refused || o.Shadow == 0 && !o.fit
	}
	p.refused = p.refused || p.slotMissing
}

// dropCharges drops the charges after the store and its fallback have failed. Their
// zones count as if they had no bucket.
func (p *plan) dropCharges() {
	for i := range p.outcomes {
		if o := &p.outcomes[i]; o.asked {
			o.asked = false
			o.setAnswer(new(leakybucket.Charge), &leakybucket.Decision{Undecided: true})
			o.dropped = o.Zone.InFlight == 0 // slots need no store
		}
	}
	p.clearCharges()
}

func (p *plan) clearCharges() {
	clear(p.charges)
	p.charges, p.of = p.charges[:0], p.of[:0]
}

// dropEnded drops the charges of groups for which the request has ended.
func (p *plan) dropEnded() {
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

// readBody reads as much of the body as the zones want, and removes all charges. The zones
// must be asked again.
func (p *plan) readBody() {
	for _, of := range p.of {
		if o := &p.outcomes[of]; o.Shadow != 0 && o.Began {
			p.began = append(p.began, o.Zone)
		}
	}
	most := p.unread
	p.reset()
	p.ReadBody(p.env.Look, most)
}

// conclude returns the outcomes in the zones of this handler, or nil if none of them
// is concerned. It also publishes them to placeholders and to the access log.
func (p *plan) conclude() *Verdict {
	for i, of := range p.of {
		if p.env.FellBack(&p.decisions[i]) {
			p.outcomes[of].Zone.Reporter.FellBack()
		}
	}
	corrected := false
	for i := range p.outcomes {
		o := &p.outcomes[i]
		p.finish(o)
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
		if p.earlier == nil && p.Replacer != nil {
			p.Replacer.Map(uncharged(p.Request.Context()))
		}
		return nil
	}
	return newVerdict(p)
}

// keepReservations keeps the charges and the store's decisions, because they may be
// corrected or given back.
func (p *plan) keepReservations() {
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

// finish sets the decision of one outcome.
func (p *plan) finish(o *Outcome) {
	if o.Turn != nil {
		o.jitter = rand.Float32()
	} else if o.Zone.RetryJitter > 0 {
		o.jitter = float32(rand.Float64() * o.Zone.RetryJitter)
	}
	if o.Reason() != rule.None {
		return // known without asking
	}
	if o.dropped {
		return // the zone counts as not asked
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
	if !o.asked {
		if o.noSlot {
			return rule.InFlight
		}
		return rule.None
	}
	if o.Block != 0 {
		o.Began = o.Began || slices.Contains(p.began, o.Zone)
	}
	switch {
	case o.fit && o.noSlot:
		return rule.InFlight
	case o.fit:
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
		if o.Shadow == group && (o.Reason() != rule.None || answered && (o.noSlot || o.asked && !o.fit)) {
			return true
		}
	}
	return false
}
