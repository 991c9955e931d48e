package decision

import (
	"context"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admission"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/body"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/clock"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/detached"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/fairqueue"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/rule"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/settlement"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	bucketkey "github.com/caddy-throttle/caddy-throttle/leakybucket/key"
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
	e := admission.Entry{
		Zone: o.admissionZone(), Key: o.Key, Delay: o.Delay,
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
}

// Needs returns what the zones want. A nil verdict wants nothing.
func (v *Verdict) Needs() (n Needs) {
	if v == nil {
		return n
	}
	for i := range v.Outcomes {
		o := &v.Outcomes[i]
		n.Held = n.Held || o.simulation != nil || o.holds() || o.watches()
		n.Slot = n.Slot || o.takesSlot() && o.admits()
		n.Turns = n.Turns || o.Turn != nil && o.Shadow == 0 && o.admits()
		n.Simulates = n.Simulates || o.Turn != nil && o.simulation != nil
		n.Cookies = n.Cookies || o.device != nil || o.sendsPass()
		n.Settles = n.Settles || o.settles()
	}
	n.Settles = n.Settles || len(v.static) > 0 || len(v.measured) > 0
	return n
}

// A Door is where admitted requests wait.
type Door struct {
	Gate    *admission.Gate
	Clock   clock.Clock
	Buffers *body.Memory

	// Refund gives back a charge, if the simulation of a group in shadow ends in a refusal. It
	// is called from any goroutine, and must not block.
	Refund func(leakybucket.Settlement)
}

// Admit holds the request until its delay is over, its body is buffered and its slots are
// free, and simulates that for shadow zones. It returns false if the client left meanwhile.
// Afterwards the verdict tells whether the request is refused. The buffer, if not nil, has
// replaced the request's body and must be ended. The refunds give back the charges of a
// request that is not admitted. A nil verdict holds nothing up.
func (v *Verdict) Admit(r *http.Request, door *Door) (buffer *body.Ahead, stayed bool, refunds []leakybucket.Settlement) {
	if !v.Needs().Held || v.Refused() {
		return nil, true, nil
	}
	since := clock.Now(door.Clock)
	v.simulateAll(since, door.Refund)
	var room [2]admission.Entry
	var places [2]*Outcome
	entries, held := v.entries(room[:0], places[:0])
	if len(entries) == 0 {
		v.begin()
		return nil, true, nil
	}
	if !v.pooled {
		outer := settlement.Innermost(r)
		outer.Pause()
		defer outer.Resume()
	}
	var grant *admission.Grant
	var result admission.Result
	if most, index := requestBuffer(held); most > 0 && !body.Received(r) {
		buffer, result = door.buffer(r, v.Client(r), since, entries, most, index)
	}
	if result.Why == admission.Admitted {
		grant, result = door.Gate.Admit(v.Client(r), since, entries, v.OuterGrant())
	}
	stayed, refunds = v.admitted(grant, result, entries, held)
	return buffer, stayed, refunds
}

// entries appends the entries of enforced zones in which the request must wait or take
// a slot, and the outcome of each.
func (v *Verdict) entries(entries []admission.Entry, held []*Outcome) ([]admission.Entry, []*Outcome) {
	for i := range v.Outcomes {
		if o := &v.Outcomes[i]; o.Shadow == 0 && o.holds() {
			entries, held = append(entries, o.entry()), append(held, o)
		}
	}
	return entries, held
}

// requestBuffer returns how much of the body is to be read before slots are taken, in
// bytes, and the index of the outcome that says so. Shadow zones read nothing: it would
// delay the request.
func requestBuffer(held []*Outcome) (most int64, index int) {
	for i, o := range held {
		if o.Zone.RequestBuffer > most {
			most, index = o.Zone.RequestBuffer, i
		}
	}
	return most, index
}

// buffer waits until the request's delay is over, and then buffers its body, as the
// entry of that index wants it. Of the entries only slots are left after that.
func (d *Door) buffer(r *http.Request, client context.Context, since time.Time, entries []admission.Entry, most int64, index int) (*body.Ahead, admission.Result) {
	delays := slices.Clone(entries)
	for i := range entries {
		delays[i].InFlight, entries[i].Delay = 0, 0
	}
	if _, result := d.Gate.Admit(client, since, delays, nil); result.Why != admission.Admitted {
		return nil, result
	}
	subject := rule.NewSubject(r)
	buffer, ended := d.Buffers.Fill(client, r, subject.Client(), most, d.Gate.Exiting)
	switch ended {
	case body.Left, body.TooSlow:
		return buffer, admission.Result{Why: admission.Left, Index: -1} // it waited in no zone
	case body.Exiting:
		return buffer, admission.Result{Why: admission.Exiting, Index: index}
	}
	return buffer, admission.Result{Why: admission.Admitted}
}

// simulateAll starts the simulated waits and slots of shadow zones, those of a group
// together. The request does not wait for them. The outcomes of the group are reported
// when the simulation ends. If enforcement would have refused the request, refund is given
// what returns the charges of the group, from any goroutine. It must not block.
func (v *Verdict) simulateAll(since time.Time, refund func(leakybucket.Settlement)) {
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

// takesSlot reports whether the request needs a slot of an enforced zone.
func (o *Outcome) takesSlot() bool {
	return o.Shadow == 0 && o.Zone.InFlight > 0 && o.Reason() == rule.None
}

// Hold notes that a request in an error route holds slots, of which no zone reports.
func Hold(r *http.Request, grant *admission.Grant) {
	v := &Verdict{grant: grant}
	if first := VerdictOf(r); first != nil {
		first.last().next = v
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
func (v *Verdict) OuterGrant() (grant *admission.Grant) {
	for outer := v.outer; outer != nil && outer != v; outer = outer.next {
		if outer.grant != nil {
			grant = outer.grant
		}
	}
	return grant
}

// Client returns the context of the request's client. Only a handler around this one that has
// a verdict can have put a detached call between.
func (v *Verdict) Client(r *http.Request) context.Context {
	if v.outer == nil {
		return r.Context()
	}
	return detached.Client(r.Context())
}

// NotServed tells the handlers around this one that it does not let the request through,
// so for how long that holds their slots says nothing of the upstream.
func (v *Verdict) NotServed() {
	v.OuterGrant().NotServed()
	for outer := v.outer; outer != nil && outer != v; outer = outer.next {
		outer.Saw(admission.Failed)
	}
}

// admitted records how the admission of the outcomes held, to enforced zones, has ended. It
// returns false if the client left meanwhile. If the request is not admitted, it returns what
// gives its charges back.
func (v *Verdict) admitted(grant *admission.Grant, r admission.Result, entries []admission.Entry, held []*Outcome) (stayed bool, refunds []leakybucket.Settlement) {
	if r.Why == admission.Admitted || r.Why == admission.Waived {
		v.grant = grant // which is nil if its waits were waived
		for i, o := range held {
			if entries[i].Waited > 0 && o.Delay == 0 {
				o.waited(entries[i].Waited)
			}
		}
		v.begin()
		return true, nil
	}
	refunds = v.refunds()
	if r.Index >= 0 { // it waited in a zone
		switch o := held[r.Index]; {
		case r.Why.Refused():
			o.exiting = r.Why == admission.Exiting
			if o.Delay == 0 {
				o.Delay = r.Waited
			}
			v.overrule(o, o.Zone.reasonOf(r.Why))
		case o.Delay == 0:
			o.waited(r.Waited)
		}
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

// begin tells simulations that the request is served from now on.
func (v *Verdict) begin() {
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
	s := leakybucket.Settlement{Charge: o.Charge, Was: o.answer}
	switch {
	case !o.asked:
		return s, false
	case atomic.CompareAndSwapUint32(&o.correction, correctionOpen, correctionUndone):
		s.Cancel = o.Zone.Delay != nil
	case atomic.CompareAndSwapUint32(&o.correction, correctionBegun, correctionUndone):
		return s, false // [Verdict.Settled] gives it back: nothing of it may be poured after that
	case atomic.CompareAndSwapUint32(&o.correction, correctionMade, correctionUndone):
		return o.refundSettled()
	default:
		return s, false
	}
	s.Diff = -s.Charge.Cost
	return s, s.Was.Poured
}

// refundSettled returns the settlement that gives a settled charge back, and false if its
// cost was 0.
func (o *Outcome) refundSettled() (leakybucket.Settlement, bool) {
	s := leakybucket.Settlement{Charge: o.Charge, Was: o.answer, Diff: -o.settledCost}
	s.Charge.Cost, s.Was.Poured = o.settledCost, true
	return s, o.settledCost > 0
}

// refunds returns the settlements that give all charges of this handler back.
func (v *Verdict) refunds() (all []leakybucket.Settlement) {
	for i := range v.Outcomes {
		if s, ok := v.Outcomes[i].refund(); ok {
			all = append(all, s)
		}
	}
	return all
}

// Measured returns what measures for how long the request keeps workers busy, whether or not
// their zones charge it. A nil verdict has none.
func (v *Verdict) Measured() []settlement.Metered {
	if v == nil {
		return nil
	}
	return v.measured
}

// Exempted returns the zones that exempt the request as a static file.
func (v *Verdict) Exempted() []Exemption { return v.static }

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
		reserved := 0.0
		if o.answer.Poured {
			reserved = o.Cost
		}
		cost, known := o.Zone.Settle.Actual(observer, o.Limit, reserved)
		o.Zone.Reporter.Settled(o, observer, cost, known)
		o.settledCost = cost
		if !atomic.CompareAndSwapUint32(&o.correction, correctionOpen, correctionBegun) {
			continue // a simulation has given the charge back
		}
		o.settled = true
		if diff := cost - reserved; diff != 0 {
			due = append(due, leakybucket.Settlement{Charge: o.Charge, Was: o.answer, Diff: diff})
		}
	}
	return due
}

// Settled must be called after the store has applied what [Verdict.Settle] returned. It
// returns the settlements that give charges back because a simulation has ended in a
// refusal meanwhile.
func (v *Verdict) Settled() (refunds []leakybucket.Settlement) {
	for i := range v.Outcomes {
		o := &v.Outcomes[i]
		if !o.settled || atomic.CompareAndSwapUint32(&o.correction, correctionBegun, correctionMade) {
			continue
		}
		if s, ok := o.refundSettled(); ok {
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

// A Turn is how a request takes turns for the slots of a zone with share.
type Turn struct {
	admission.Turn
	Standing rule.Standing
}

// The keys of members and of passes begin so. Share keys never do, because a leading @
// in a part of a key is escaped.
const (
	memberKey = "@member/"
	passKey   = "@pass/"
)

// turnOf returns a new turn of a request, or nil if the zone has no share.
func turnOf(r *rule.Rule, s *rule.Subject, b *rule.Buffers) *Turn {
	if r.Share == nil {
		return nil
	}
	t := &Turn{Standing: rule.Standing{Rank: fairqueue.First}}
	if r.Ranks != nil {
		t.Standing = r.Ranks.Standing(s)
	}
	t.Rank = t.Standing.Rank
	if t.Rank == fairqueue.Member {
		t.Network = bucketkey.ClientPrefix(s.Address(), 24, 48)
	}
	if t.Rank == fairqueue.Member && t.Standing.Member != "" {
		t.Keys[0] = memberKey + t.Standing.Member
		return t
	}
	t.Keys[0] = r.Share.Name(s, b)
	switch {
	case t.Standing.Early > 0:
		t.Keys[1] = memberKey + t.Standing.Member
	case t.Standing.Pass != "":
		t.Keys[1] = passKey + t.Standing.Pass
	}
	return t
}

// Saw tells simulations how the upstream's work on the request has ended. It is called
// before Release.
func (v *Verdict) Saw(f admission.Fate) {
	for i := range v.Outcomes {
		if s := v.Outcomes[i].simulation; s != nil {
			s.Saw(f)
		}
	}
}

// reasonOf returns why the zone refuses a request whose admission ended so.
func (z *Zone) reasonOf(why admission.Why) rule.Reason {
	switch why {
	case admission.TooLong:
		return rule.TurnTooLate
	case admission.TimedOut:
		if z.Share != nil {
			return rule.Timeout
		}
		return rule.InFlight
	case admission.NoSlot:
		return rule.InFlight
	}
	return rule.QueueFull
}
