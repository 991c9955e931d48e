package decision

import (
	"context"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admission"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/body"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/clock"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/detached"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/rule"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// holds reports whether the request must wait or take a slot in the zone, if it is
// admitted.
func (o *Outcome) holds() bool {
	return (o.Delay > 0 || o.Zone.InFlight > 0) && o.admits()
}

// admits reports whether the zone lets the request in, as far as is known. Unlike fit,
// which is the store's answer, it counts slots, turns and other zones as well.
func (o *Outcome) admits() bool {
	d, why := o.Ruling()
	return d != Withdrawn && why == rule.None
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
		if o.Shadow == 0 { // in shadow, nobody was told to wait
			e.Early = o.Turn.Standing.Early
		}
	}
	return e
}

// wouldBe returns what would become of the request if it asked for its slot now.
func (o *Outcome) wouldBe() admission.Why {
	e := o.entry()
	return e.Zone.Ask(&e)
}

// Needs are what the zones of a handler want of a request that they let in.
type Needs struct {
	// Held says that the request waits or takes a slot in a zone, enforced or not, or that a
	// simulation wants to know when it has been served: also one that has ended in a refusal
	// already, or that another zone would refuse.
	Held bool

	Timed     bool // a delay counts from now, or for how long a slot is held is measured
	Slot      bool // it holds one of an enforced zone
	Turns     bool // it has taken its turn in an enforced zone with share
	Simulates bool // a zone with share is in shadow, and wants to know whether the upstream fails
	Cookies   bool // the response may bring the client a device cookie or a pass, or take one away
	Settles   bool // the response may change charges of this request, or of others
	OwnHeader bool // and its header says whether it earns a refund
}

// Needs returns what the zones want. A nil verdict wants nothing.
func (v *Verdict) Needs() (n Needs) {
	if v == nil {
		return n
	}
	aside := v.aside()
	for _, s := range aside.simulations {
		n.Held, n.Simulates = true, n.Simulates || s.Turns
	}
	for i := range v.Outcomes {
		o := &v.Outcomes[i]
		n.Held = n.Held || o.holds() || o.watches()
		n.Timed = n.Timed || o.Delay > 0 || o.Turn != nil
		n.Slot = n.Slot || o.takesSlot() && o.admits()
		n.Turns = n.Turns || o.Turn != nil && o.Shadow == 0 && o.admits()
		n.Cookies = n.Cookies || o.device != nil || o.sendsPass()
		n.Settles = n.Settles || o.settles()
		n.OwnHeader = n.OwnHeader || len(o.Zone.Refund) > 0
	}
	n.Settles = n.Settles || len(aside.static) > 0
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
	needs := v.Needs()
	if !needs.Held || v.Refused() {
		return nil, true, nil
	}
	var since time.Time
	if needs.Timed {
		since = clock.Now(door.Clock)
	}
	v.simulateAll(r, since, door.Refund)
	var room [2]admission.Entry
	var places [2]*Outcome
	entries, held := v.entries(room[:0], places[:0])
	if len(entries) == 0 {
		v.begin()
		return nil, true, nil
	}
	var ready func() (admission.Why, int)
	if most, index := requestBuffer(held); most > 0 && !body.AllReceived(r) {
		ready = func() (why admission.Why, in int) {
			buffer, why, in = door.buffer(r, v.Client(r), most, index)
			return why, in
		}
	}
	grant, result := door.Gate.Admit(v.Client(r), since, entries, ready)
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

// buffer buffers the body of a request, as the entry of that index wants it. If the
// request is not ready for slots after that, buffer says how its admission ends.
func (d *Door) buffer(r *http.Request, client context.Context, most int64, index int) (*body.Ahead, admission.Why, int) {
	subject := rule.NewSubject(r)
	buffer, ended := d.Buffers.Fill(client, r, subject.Client(), most, d.Gate.Exiting)
	switch ended {
	case body.Left, body.TooSlow:
		return buffer, admission.Left, -1 // it waited in no zone
	case body.Exiting:
		return buffer, admission.Exiting, index
	}
	return buffer, admission.Admitted, -1
}

// simulateAll starts the simulated waits and slots of shadow zones, those of a group
// together. The request does not wait for them. The outcomes of the group are reported
// when the simulation ends. If enforcement would have refused the request, refund is given
// what returns the charges of the group, from any goroutine. It must not block.
func (v *Verdict) simulateAll(r *http.Request, since time.Time, refund func(leakybucket.Settlement)) {
	for i := range v.Outcomes {
		switch o := &v.Outcomes[i]; {
		case o.Shadow == 0 || o.simulating:
		case o.holds():
			v.simulate(r, o.Shadow, since, refund)
		case o.watches():
			v.simulates(simulation{admission.Watch(o.entry()), o.Shadow})
		}
	}
}

// simulate starts the simulation of a group.
func (v *Verdict) simulate(r *http.Request, group leakybucket.Shadow, since time.Time, refund func(leakybucket.Settlement)) {
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
	var s *admission.Simulation // set before the request can be admitted
	s = admission.Simulate(since, entries, func(result admission.Result) { v.simulated(r, group, s, result, refund) })
	v.simulates(simulation{s, group})
}

// enters reports whether the simulation of its group has an entry of the outcome.
func (o *Outcome) enters() bool { return o.simulating && (o.Delay > 0 || o.Zone.InFlight > 0) }

// simulated records the result of a group's simulation, and reports its outcomes.
func (v *Verdict) simulated(r *http.Request, group leakybucket.Shadow, s *admission.Simulation, result admission.Result, refund func(leakybucket.Settlement)) {
	entry := 0
	for i := range v.Outcomes {
		o := &v.Outcomes[i]
		if o.Shadow != group || !o.enters() {
			continue
		}
		switch {
		case result.Why.Refused() && result.Index == entry:
			v.refuseSimulated(o, o.Zone.reasonOf(result.Why), refund)
		case result.Why == admission.Admitted && s.Waited(entry) > 0:
			o.become(ShadowDelayed, rule.None)
		}
		entry++
	}
	for i := range v.Outcomes {
		if o := &v.Outcomes[i]; o.Shadow == group && o.simulating {
			o.report(r, time.Time{}, nil)
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
	v.endAround(refused)
}

// endAround tells the simulations of a group in the handlers around this one, if enforcement
// would refuse the request here.
func (v *Verdict) endAround(o *Outcome) {
	if o.Shadow == 0 || o.Shadow >= rule.ShadowBeside || o.Reason() == rule.None {
		return
	}
	for outer := v.outer; outer != nil && outer != v; outer = outer.next {
		for _, s := range outer.aside().simulations {
			if s.group == o.Shadow {
				s.NotServed()
			}
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
	for outer := v.outer; outer != nil && outer != v; outer = outer.next {
		outer.grant.NotServed()
		outer.Saw(admission.Failed)
		for _, s := range outer.aside().simulations {
			s.NotServed()
		}
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
			if o.Delay == 0 {
				o.Delay = r.Waited
			}
			v.overrule(o, o.Zone.reasonOf(r.Why))
		case o.Delay == 0:
			o.waited(r.Waited)
		}
	}
	for i := range v.Outcomes {
		v.Outcomes[i].ended = r.Why
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
	for _, s := range v.aside().simulations {
		s.Begin()
	}
}

// Release releases the request's slots. It is called when the request has been served
// or has become a tunnel. It may be called several times and by any goroutine.
func (v *Verdict) Release() {
	v.grant.Release()
	for _, s := range v.aside().simulations {
		s.Release()
	}
}

// ReleaseTurns releases the slots of zones with share, when the upstream is done and the
// client may not be. Otherwise it is like Release.
func (v *Verdict) ReleaseTurns() {
	v.grant.ReleaseTurns()
	for _, s := range v.aside().simulations {
		if s.Turns {
			s.Release()
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

// Saw tells simulations how the upstream's work on the request has ended. It is called
// before Release.
func (v *Verdict) Saw(f admission.Fate) {
	for _, s := range v.aside().simulations {
		s.Saw(f)
	}
}

// reasonOf returns why the zone refuses a request whose admission ended so.
func (z *Zone) reasonOf(why admission.Why) rule.Reason {
	switch {
	case why != admission.TooLong && why != admission.TimedOut:
		return rule.QueueFull
	case z.Share == nil:
		return rule.InFlight
	case why == admission.TooLong:
		return rule.TurnTooLate
	}
	return rule.Timeout
}
