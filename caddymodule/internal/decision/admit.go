package decision

import (
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admission"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/rule"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/settlement"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// holds reports whether the request must wait or take a slot in the zone, if it is
// admitted.
func (o *Outcome) holds() bool {
	return (o.Delay > 0 || o.Zone.InFlight > 0) && o.admits()
}

// admissionZone returns what holds the queues and slots of the zone.
func (o *Outcome) admissionZone() *admission.Zone {
	if o.Shadow != 0 {
		return o.Zone.Simulated
	}
	return o.Zone.Enforced
}

func (o *Outcome) entry() admission.Entry {
	var asked leakybucket.Instant
	if o.reservation != nil {
		asked = o.reservation.was.At
	}
	e := admission.Entry{
		Zone: o.admissionZone(), Key: o.Key, Delay: o.Delay, Due: asked.Add(o.Delay),
		InFlight: o.Zone.InFlight, MaxWaiting: o.Zone.MaxWaiting,
	}
	if o.Zone.QueuesForSlots() {
		e.MaxWait = o.Zone.MaxWait
	}
	if o.Turn != nil {
		e.Turn = &o.Turn.Turn
		if early := o.Turn.Standing.Early; early > 0 && o.Shadow == 0 { // in shadow, nobody was told to wait
			e.NotBefore = time.Now().Add(early)
		}
	}
	return e
}

// Needs are what the zones of a handler want of a request that they let in.
type Needs struct {
	// Held says that the request waits or takes a slot in a zone, enforced or not, or that a
	// simulation wants to know when it has been served: also one that has ended in a refusal
	// already, or that another zone would refuse.
	Held bool

	Slot      bool // it holds one of an enforced zone
	Turns     bool // it has taken its turn in an enforced zone with share
	Simulates bool // a zone with share is in shadow, and wants to know whether the upstream fails
	Cookies   bool // the response may bring the client a device cookie or a pass, or take one away
	Settles   bool // the response may change charges of this request, or of others

	trusts, passes bool // which cookies
}

// Needs returns what the zones want. A nil verdict wants nothing.
func (v *Verdict) Needs() (n Needs) {
	if v == nil {
		return n
	}
	for i := range v.Outcomes {
		o := &v.Outcomes[i]
		_, slot := o.Slot()
		n.Held = n.Held || o.simulation != nil || o.holds() || o.watches()
		n.Slot = n.Slot || slot && o.admits()
		n.Turns = n.Turns || o.Turn != nil && o.Shadow == 0 && o.admits()
		n.Simulates = n.Simulates || o.Turn != nil && o.simulation != nil
		n.trusts = n.trusts || o.device != nil
		n.passes = n.passes || o.sendsPass()
		n.Settles = n.Settles || o.settles()
	}
	n.Cookies = n.trusts || n.passes
	n.Settles = n.Settles || len(v.Static()) > 0 || len(v.Measured()) > 0
	return n
}

// Entries appends the entries of enforced zones in which the request must wait or take
// a slot.
func (v *Verdict) Entries(entries []admission.Entry) []admission.Entry {
	for i := range v.Outcomes {
		if o := &v.Outcomes[i]; o.Shadow == 0 && o.holds() {
			entries = append(entries, o.entry())
		}
	}
	return entries
}

// RequestBuffer returns how much of the body is to be read before slots are taken, in
// bytes, and the index of the entry that says so. Shadow zones read nothing: it would
// delay the request.
func (v *Verdict) RequestBuffer() (most int64, index int) {
	n := 0
	for i := range v.Outcomes {
		if o := &v.Outcomes[i]; o.Shadow == 0 && o.holds() {
			if o.Zone.RequestBuffer > most {
				most, index = o.Zone.RequestBuffer, n
			}
			n++
		}
	}
	return most, index
}

// entered returns the outcome of the entry with this index, or nil.
func (v *Verdict) entered(index int) *Outcome {
	for i := range v.Outcomes {
		if o := &v.Outcomes[i]; o.Shadow == 0 && o.holds() {
			if index == 0 {
				return o
			}
			index--
		}
	}
	return nil
}

// Simulate starts the simulated waits and slots of shadow zones, those of a group
// together. The request does not wait for them. The outcomes of the group are reported
// when the simulation ends. If enforcement would have refused the request, refund is given
// what returns the charges of the group, from any goroutine. It must not block.
func (v *Verdict) Simulate(since time.Time, refund func(leakybucket.Settlement)) {
	for i := range v.Outcomes {
		switch o := &v.Outcomes[i]; {
		case o.Shadow == 0 || o.simulation != nil:
		case o.holds():
			v.simulate(o.Shadow, since, refund)
		case o.watches():
			o.simulation = admission.Watch(o.entry())
		}
	}
}

// simulate starts the simulation of a group.
func (v *Verdict) simulate(group leakybucket.Shadow, since time.Time, refund func(leakybucket.Settlement)) {
	var room [1]admission.Entry
	entries := room[:0]
	for i := range v.Outcomes {
		o := &v.Outcomes[i]
		if o.Shadow != group {
			continue
		}
		if o.simulating = o.admits(); o.enters() {
			entries = append(entries, o.entry())
		}
	}
	s := admission.Simulate(since, entries, func(r admission.Result) { v.simulated(group, r, refund) })
	for i := range v.Outcomes {
		if o := &v.Outcomes[i]; o.Shadow == group && o.enters() {
			o.simulation = s
		}
	}
}

// enters reports whether the simulation of its group has an entry of the outcome.
func (o *Outcome) enters() bool { return o.simulating && (o.Delay > 0 || o.Zone.InFlight > 0) }

// simulated records the result of a group's simulation, and reports its outcomes.
func (v *Verdict) simulated(group leakybucket.Shadow, r admission.Result, refund func(leakybucket.Settlement)) {
	entry := 0
	for i := range v.Outcomes {
		o := &v.Outcomes[i]
		if o.Shadow != group || !o.enters() {
			continue
		}
		switch {
		case r.Why.Refused() && r.Index == entry:
			v.refuseSimulated(o, o.Zone.reasonOf(r.Why), refund)
		case r.Why == admission.Admitted && o.simulation.Waited(entry) > 0:
			o.become(ShadowDelayed, rule.None)
		}
		entry++
	}
	for i := range v.Outcomes {
		if o := &v.Outcomes[i]; o.Shadow == group && o.simulating {
			o.report(time.Time{}, nil)
		}
	}
}

// refuseSimulated records that enforcement would have refused the request for want of a
// slot: the other outcomes of the group are withdrawn, and all its charges given back.
func (v *Verdict) refuseSimulated(refused *Outcome, why rule.Reason, refund func(leakybucket.Settlement)) {
	if refused.Decision() == Withdrawn {
		return // an enforced zone has refused it
	}
	for i := range v.Outcomes {
		o := &v.Outcomes[i]
		if o.Shadow != refused.Shadow {
			continue
		}
		if o == refused {
			o.become(ShadowRefused, why)
		} else {
			o.become(Withdrawn, rule.None)
		}
		if !o.asked {
			continue
		}
		if s, ok := o.refund(); ok {
			refund(s)
		}
	}
}

// watches reports whether a zone with share is in shadow, and wants to know how long the
// upstream works on a request that another zone of its group would refuse.
func (o *Outcome) watches() bool {
	return o.Turn != nil && o.Shadow != 0 && o.Decision() == Withdrawn
}

// Slot returns an entry that takes a slot of an enforced zone if one is free, and never
// waits. It returns false if the request needs none.
func (o *Outcome) Slot() (e admission.Entry, takes bool) {
	e = admission.Entry{Zone: o.Zone.Enforced, Key: o.Key, InFlight: o.Zone.InFlight}
	return e, o.Shadow == 0 && e.InFlight > 0 && o.Reason() == rule.None
}

// Hold notes that a request in an error route holds slots, of which no zone reports.
func Hold(r *http.Request, grant *admission.Grant) {
	v := &Verdict{grant: grant}
	if last := VerdictOf(r); last != nil {
		for last.next != nil {
			last = last.next
		}
		last.next = v
		return
	}
	caddyhttp.SetVar(r.Context(), verdictVar, v)
}

// HoldsSlot reports whether the request holds a slot of a zone. A nil verdict holds none.
func (v *Verdict) HoldsSlot(zone *admission.Zone) bool {
	for ; v != nil; v = v.next {
		if v.grant.Holds(zone) {
			return true
		}
	}
	return false
}

// OuterGrant returns the slots that the request holds in the handlers around this one,
// or nil.
func (v *Verdict) OuterGrant(r *http.Request) (grant *admission.Grant) {
	for outer := VerdictOf(r); outer != nil && outer != v; outer = outer.next {
		if outer.grant != nil {
			grant = outer.grant
		}
	}
	return grant
}

// NotServed tells the handlers around this one that it does not let the request through,
// so for how long that holds their slots says nothing of the upstream.
func (v *Verdict) NotServed(r *http.Request) {
	v.OuterGrant(r).NotServed()
	for outer := VerdictOf(r); outer != nil && outer != v; outer = outer.next {
		outer.Saw(admission.Failed)
	}
}

// Admitted records how the admission to enforced zones ended. It returns false if the
// client left meanwhile. If the request is not admitted, it returns what gives its
// charges back.
func (v *Verdict) Admitted(grant *admission.Grant, r admission.Result, entries []admission.Entry) (stayed bool, refunds []leakybucket.Settlement) {
	if r.Why == admission.Admitted || r.Why == admission.Waived {
		v.grant = grant // which is nil if its waits were waived
		for i := range entries {
			if o := v.entered(i); entries[i].Waited > 0 && o.Delay == 0 {
				o.waited(entries[i].Waited)
			}
		}
		v.Begin()
		return true, nil
	}
	refunds = v.refunds()
	o := v.entered(r.Index)
	switch {
	case r.Why.Refused():
		o.exiting = r.Why == admission.Exiting
		if o.Delay == 0 {
			o.Delay = r.Waited
		}
		v.overrule(o, o.Zone.reasonOf(r.Why))
	case o != nil && o.Delay == 0:
		o.waited(r.Waited)
	}
	if r.Why == admission.Left {
		for i := range v.Outcomes {
			v.Outcomes[i].Left = true
		}
	}
	v.Release()
	return r.Why != admission.Left, refunds
}

// waited records that the request has waited for a slot.
func (o *Outcome) waited(by time.Duration) {
	o.become(Delayed, rule.None)
	o.Delay = by
}

// Begin tells simulations that the request is served from now on.
func (v *Verdict) Begin() {
	for i := range v.Outcomes {
		if s := v.Outcomes[i].simulation; s != nil {
			s.Begin()
		}
	}
}

// Release releases the request's slots. It is called when the request has been served
// or has become a tunnel. It may be called several times and by any goroutine.
func (v *Verdict) Release() {
	v.grant.Release()
	for i := range v.Outcomes {
		if s := v.Outcomes[i].simulation; s != nil {
			s.Release()
		}
	}
}

// ReleaseTurns releases the slots of zones with share, when the upstream is done and the
// client may not be. Otherwise it is like Release.
func (v *Verdict) ReleaseTurns() {
	v.grant.ReleaseTurns()
	for i := range v.Outcomes {
		if o := &v.Outcomes[i]; o.Turn != nil && o.simulation != nil {
			o.simulation.Release()
		}
	}
}

// overrule turns an outcome that fit into a refusal. Other outcomes that fit are
// withdrawn.
func (v *Verdict) overrule(o *Outcome, why rule.Reason) {
	o.become(Refused, why)
	for i := range v.Outcomes {
		if other := &v.Outcomes[i]; other.Reason() == rule.None {
			other.become(Withdrawn, rule.None)
		}
	}
}

// The states of a charge's correction. The response and a simulation that ends in a
// refusal may both correct it, in any order, but it is given back only once.
const (
	correctionOpen uint32 = iota
	correctionBegun
	correctionMade
	correctionUndone
)

// refund returns the settlement that gives the charge back, and false if there is
// nothing to give back. A charge with a place in a queue is cancelled: if other
// requests have queued behind it, its place stays empty.
func (o *Outcome) refund() (leakybucket.Settlement, bool) {
	r := o.reservation
	if r == nil {
		return leakybucket.Settlement{}, false
	}
	s := leakybucket.Settlement{Charge: r.charge, Was: r.was}
	switch {
	case atomic.CompareAndSwapUint32(&r.correction, correctionOpen, correctionUndone):
		s.Cancel = o.Zone.Delay != nil
	case atomic.CompareAndSwapUint32(&r.correction, correctionBegun, correctionUndone):
		return s, false // [Verdict.Settled] gives it back: nothing of it may be poured after that
	case atomic.CompareAndSwapUint32(&r.correction, correctionMade, correctionUndone):
		return r.refundSettled()
	default:
		return s, false
	}
	s.Diff = -s.Charge.Cost
	return s, s.Was.Poured
}

// refundSettled returns the settlement that gives a settled charge back, and false if its
// cost was 0.
func (r *reservation) refundSettled() (leakybucket.Settlement, bool) {
	s := leakybucket.Settlement{Charge: r.charge, Was: r.was, Diff: -r.settledCost}
	s.Charge.Cost, s.Was.Poured = r.settledCost, true
	return s, r.settledCost > 0
}

// refunds returns the settlements that give all charges of this handler back.
func (v *Verdict) refunds() (all []leakybucket.Settlement) {
	for i := range v.Outcomes {
		if o := &v.Outcomes[i]; o.asked {
			if s, ok := o.refund(); ok {
				all = append(all, s)
			}
		}
	}
	return all
}

func (o *Outcome) settles() bool {
	return o.Zone.Settle != nil && o.asked && o.admits()
}

// admits reports whether the zone lets the request in, as far as is known. Unlike fit,
// which is the store's answer, it counts slots, turns and other zones as well.
func (o *Outcome) admits() bool {
	d, why := o.Ruling()
	return d != Withdrawn && why == rule.None
}

// Settle appends the settlements that correct the charges to what the request really
// cost. The caller must call [Verdict.Settled] after the store has applied them.
func (v *Verdict) Settle(due []leakybucket.Settlement, observer *settlement.Observer) []leakybucket.Settlement {
	for i := range v.Outcomes {
		o := &v.Outcomes[i]
		if o.device != nil && o.device.renewed {
			place := o.place(o.device.client.Place())
			due = append(due, leakybucket.Settlement{Charge: place, Diff: place.Cost})
		}
		if !o.settles() {
			continue
		}
		r, reserved := o.reservation, 0.0
		if o.poured {
			reserved = o.Cost
		}
		cost, known := o.Zone.Settle.Actual(observer, o.Limit, reserved)
		o.Zone.Reporter.Settled(o, observer, cost, known)
		r.settledCost = cost
		if !atomic.CompareAndSwapUint32(&r.correction, correctionOpen, correctionBegun) {
			continue // a simulation has given the charge back
		}
		r.settled = true
		if diff := cost - reserved; diff != 0 {
			due = append(due, leakybucket.Settlement{Charge: r.charge, Was: r.was, Diff: diff})
		}
	}
	return due
}

// Unsettled tells the Reporters that the store could not apply what [Verdict.Settle]
// returned.
func (v *Verdict) Unsettled(due []leakybucket.Settlement) {
	for i := range due {
		v.zoneOf(due[i].Charge.Zone).Reporter.Unsettled(1)
	}
}

// zoneOf returns the zone of a name, of those that have charged or exempted the request.
func (v *Verdict) zoneOf(name string) *Zone {
	for i := range v.Outcomes {
		if z := v.Outcomes[i].Zone; z.Name == name {
			return z
		}
	}
	static := v.Static()
	return static[slices.IndexFunc(static, func(e Exemption) bool { return e.Zone.Name == name })].Zone
}

// Settled must be called after the store has applied what [Verdict.Settle] returned. It
// returns the settlements that give charges back because a simulation has ended in a
// refusal meanwhile.
func (v *Verdict) Settled() (refunds []leakybucket.Settlement) {
	for i := range v.Outcomes {
		r := v.Outcomes[i].reservation
		if r == nil || !r.settled || atomic.CompareAndSwapUint32(&r.correction, correctionBegun, correctionMade) {
			continue
		}
		if s, ok := r.refundSettled(); ok {
			refunds = append(refunds, s)
		}
	}
	return refunds
}

// report calls the zone's Reporter with a final outcome. It must be called once: by
// [Verdict.Report], or by the simulation when it ends.
func (o *Outcome) report(now time.Time, header http.Header) {
	if o.Decision() != Withdrawn {
		o.Zone.Reporter.Decided(o, now, header)
	}
}

// Report calls the zones' Reporters with all final outcomes, the header of the response,
// and with the time or, if that was not read, zero. Simulations report their own outcomes
// when they end. logged says that the request will be in an access log, as far as is known,
// and Report returns it unless a zone keeps the line of this refusal out.
func (v *Verdict) Report(now time.Time, header http.Header, logged bool) bool {
	logged = logged && (!v.Refused() || v.Decisive().Zone.Reporter.Logs(now))
	for i := range v.Outcomes {
		o := &v.Outcomes[i]
		if logged && o.Decision() != Withdrawn {
			o.unlogged = o.Zone.Reporter.Unlogged()
		}
		if !o.simulating {
			o.report(now, header)
		}
	}
	return logged
}
