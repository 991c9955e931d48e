package decision

import (
	"cmp"
	"context"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/device"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/inflight/pass"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/rule"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/settlement"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/staticfile"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	bucketkey "github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

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
func (o *Outcome) refund() (s leakybucket.Settlement, due bool) {
	if !o.asked {
		return s, false
	}
	switch atomic.SwapUint32(&o.correction, correctionUndone) {
	case correctionOpen:
		s = leakybucket.Settlement{Charge: o.Charge(), Was: o.was(), Diff: -o.Cost, Cancel: o.Zone.Delay != nil}
		return s, s.Was.Poured
	case correctionMade:
		return o.refundSettled()
	}
	return s, false // if it has begun, [Verdict.Settled] gives it back: nothing of it may be poured after that
}

// refundSettled returns the settlement that gives a settled charge back, and false if its
// cost was 0.
func (o *Outcome) refundSettled() (leakybucket.Settlement, bool) {
	s := leakybucket.Settlement{Charge: o.Charge(), Was: o.was(), Diff: -o.settledCost}
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

func (o *Outcome) settles() bool {
	return (o.Zone.Settle != nil || len(o.Zone.Refund) > 0 && o.poured) && o.asked && o.admits()
}

// Settle appends the settlements that correct the charges to what the request really
// cost, also if it was exempt as one for a static file and the upstream has answered it. The
// caller must call [Verdict.Settled] after the store has applied them.
func (v *Verdict) Settle(r *http.Request, due []leakybucket.Settlement, observer *settlement.Observer) []leakybucket.Settlement {
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
		if o.poured {
			reserved = o.Cost
		}
		var cost float64
		known, refunded := true, false
		if o.Zone.Settle != nil {
			cost, known = o.Zone.Settle.Actual(observer, o.Limit, reserved)
			refunded = cost == 0
		} else {
			cost = o.Zone.Refund.Actual(observer, reserved)
			refunded = cost < reserved
		}
		o.Zone.Reporter.Settled(refunded, known)
		o.settledCost = cost
		if !atomic.CompareAndSwapUint32(&o.correction, correctionOpen, correctionBegun) {
			continue // a simulation has given the charge back
		}
		o.settled = true
		if diff := cost - reserved; diff != 0 {
			due = append(due, leakybucket.Settlement{Charge: o.Charge(), Was: o.was(), Diff: diff})
		}
	}
	if static := v.aside().static; len(static) > 0 && staticfile.UpstreamAnswered(r, observer.Header()) {
		for _, e := range static {
			e.zone.Reporter.ServedStatic(r)
			if e.charge.Cost > 0 {
				due = append(due, leakybucket.Settlement{Charge: e.charge, Diff: e.charge.Cost})
			}
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

// place returns the charge for one of the places that an account has for devices. Its
// bucket is full when a device logs in, and empty when that is no longer trusted. In
// shadow devices have places as in enforcement, which begins with those of the shadow.
func (o *Outcome) place(i int) leakybucket.Charge {
	return leakybucket.Charge{
		Zone: o.Zone.Name, Key: cmp.Or(o.device.account, o.Key) + "/@devices/" + strconv.Itoa(i), Cost: 1,
		Limit: rule.PlaceLimit(o.Zone.Trust),
	}
}

// newPlace takes a free place for one more device, and returns false if there is none.
func (o *Outcome) newPlace(r *http.Request, take taker) (i int, found bool) {
	var places [device.Most]leakybucket.Charge
	var decisions [device.Most]leakybucket.Decision
	for i := range places {
		places[i] = o.place(i)
		places[i].Probe = true
	}
	if take(r.Context(), places[:], decisions[:]) != nil {
		return 0, false
	}
	first := rand.IntN(device.Most) // another browser may be looking for a place, too
	for n := range places {
		if i = (first + n) % device.Most; decisions[i].Fits {
			places[i].Probe = false
			return i, take(r.Context(), places[i:i+1], decisions[i:i+1]) == nil && decisions[i].Fits
		}
	}
	return 0, false
}

// A taker asks the store, as [Env]'s Take does, for another charge of a request that is being
// answered.
type taker func(context.Context, []leakybucket.Charge, []leakybucket.Decision) error

// SendCookies adds device cookies and passes to a response that has earned them, before its
// headers are sent. own are those fields of the header that come from within.
func (v *Verdict) SendCookies(r *http.Request, status int, header, own http.Header, take taker) {
	v.trust(r, status, header, own, take)
	v.sendPasses(r, status, header, take)
}

// trust adds device cookies to a response that has earned them. A known device keeps its
// place, which [Verdict.Settle] fills.
func (v *Verdict) trust(r *http.Request, status int, header, own http.Header, take taker) {
	now := time.Now()
	for i := range v.Outcomes {
		o := &v.Outcomes[i]
		if o.device == nil || !o.Zone.Refund.Match(status, own, now) || !o.device.client.Earned(own, now) {
			continue
		}
		client := o.device.client
		place := client.Place()
		if _, known := client.Device(); known {
			o.device.renewed = true
		} else if free, found := o.newPlace(r, take); found {
			place = free
		} else {
			continue
		}
		client.Issue(header, place, now)
	}
}

// sendsPass reports whether the response may bring the client the pass of a member, or
// take it away. Shadow zones send none.
func (o *Outcome) sendsPass() bool {
	return o.Turn != nil && o.Shadow == 0 && o.admits() && o.Turn.Standing.Client.Learns()
}

// sendPasses adds the passes of members to a response, or takes them away.
func (v *Verdict) sendPasses(r *http.Request, status int, header http.Header, take taker) {
	if r.Method == http.MethodConnect || status < 200 {
		return // a tunnel
	}
	now := time.Now()
	for i := range v.Outcomes {
		o := &v.Outcomes[i]
		if !o.sendsPass() {
			continue
		}
		c := &o.Turn.Standing.Client
		event := c.Answered(status, header, now, func(account pass.ID) bool { return o.join(r, account, now, take) })
		o.Zone.Reporter.Answered(c.New(), event)
		o.Zone.Reporter.CountPass(event)
	}
}

// A memberPlace is that of an account among the members of a network.
type memberPlace struct {
	network string
	account pass.ID
}

// mostMemberPlaces bounds the memory of them. Accounts beyond it take a place each time.
const mostMemberPlaces = 10_000

// join reports whether one more account of the client's network may become a member. One
// that has lately, and whose client has not kept the pass or not got it yet, needs no
// other place: it still has one turn.
func (o *Outcome) join(r *http.Request, account pass.ID, now time.Time, take taker) bool {
	network := "unknown"
	if addr := o.ClientIP(r); addr.IsValid() {
		network = bucketkey.ClientPrefix(addr, o.Zone.Key.IPv4Bits, o.Zone.Key.IPv6Bits).Addr().String()
	}
	at := memberPlace{network, account}
	if _, joined := o.Zone.members.Get(at, now); joined {
		return true
	}
	charges := []leakybucket.Charge{{Zone: o.Zone.Name, Key: "@members/" + network, Cost: 1, Limit: rule.MemberLimit}}
	decisions := make([]leakybucket.Decision, 1)
	if take(r.Context(), charges, decisions) != nil || !decisions[0].Fits {
		return false
	}
	o.Zone.members.Put(at, struct{}{}, now.Add(time.Hour), now)
	return true
}
