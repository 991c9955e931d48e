package limit

import (
	"net/http"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/staticfile"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// Needs are what the zones of a handler want of the response to a request that they let in.
type Needs struct {
	Cookies   bool // it may bring the client a device cookie
	Settles   bool // it may change charges of this request, or of others
	OwnHeader bool // and its header says whether it earns a refund
	Times     bool // and how long it takes says what it cost
}

// Needs returns what the zones want.
func (v *Verdict) Needs() (n Needs) {
	for i := range v.Outcomes {
		o := &v.Outcomes[i]
		n.Cookies = n.Cookies || o.device != nil
		n.Settles = n.Settles || o.settles()
		n.OwnHeader = n.OwnHeader || len(o.Zone.Refund) > 0
		n.Times = n.Times || o.Zone.Settle != nil && o.Zone.Settle.Source == BySeconds
	}
	n.Settles = n.Settles || len(v.static)+len(v.due) > 0
	return n
}

// GiveBack returns the settlements that give back all that was poured, for a request that costs
// nothing. One that left while it waited is cancelled: if other requests have queued behind it, its
// place stays empty. One that was refused further in has had its place, and so much has leaked
// before that which others had poured.
func (v *Verdict) GiveBack(waited bool) (due []leakybucket.Settlement) {
	due = append(due, v.due...)
	for i := range v.Outcomes {
		if o := &v.Outcomes[i]; o.Answer.Poured {
			o.settled, o.settledCost = true, 0
			back := givenBack(o.Zone, &o.Charge, &o.Answer)
			if waited {
				back.Cancel, back.Was.At = false, back.Was.At.Add(o.Delay)
			}
			due = append(due, back)
		}
	}
	return due
}

// givenBack gives back all that a charge has poured. A place in a queue is cancelled.
func givenBack(z *Zone, c *leakybucket.Charge, d *leakybucket.Decision) leakybucket.Settlement {
	return leakybucket.Settlement{Charge: *c, Was: *d, Diff: -c.Cost, Cancel: z.Delay != nil}
}

func (o *Outcome) settles() bool {
	return (o.Zone.Settle != nil || len(o.Zone.Refund) > 0 && o.Answer.Poured) && o.asked && o.decision != Skipped && o.reason == None
}

// Settle appends the settlements that correct the charges to what the request really
// cost, which is known now, also if it was exempt as one for a static file and the upstream has
// answered it.
func (v *Verdict) Settle(r *http.Request, now time.Time, due []leakybucket.Settlement, observer *Observer) []leakybucket.Settlement {
	due = append(due, v.due...)
	for i := range v.Outcomes {
		o := &v.Outcomes[i]
		if !o.settles() {
			continue
		}
		reserved := 0.0
		if o.Answer.Poured {
			reserved = o.Cost
		}
		var cost float64
		known, refunded := true, false
		if o.Zone.Settle != nil {
			cost, known = o.Zone.Settle.Actual(observer, o.Limit, reserved)
			refunded = cost == 0
		} else {
			cost = o.Zone.Refund.Actual(observer, reserved, now)
			refunded = cost < reserved
		}
		o.Zone.Reporter.Settled(observer.FinalStatus(), refunded, known)
		o.settledCost, o.settled = cost, true
		if diff := cost - reserved; diff != 0 {
			due = append(due, leakybucket.Settlement{Charge: o.Charge, Was: o.Answer, Diff: diff})
		}
	}
	if len(v.static) > 0 && staticfile.UpstreamAnswered(r, observer.Header()) {
		for _, e := range v.static {
			e.zone.Reporter.ServedStatic(r)
			if e.charge.Cost > 0 {
				due = append(due, leakybucket.Settlement{Charge: e.charge, Diff: e.charge.Cost})
			}
		}
	}
	return due
}

// SendCookies adds device cookies to a response that has earned them, before its headers are
// sent. own are those fields of the header that come from within.
func (v *Verdict) SendCookies(now time.Time, status int, header, own http.Header) {
	for i := range v.Outcomes {
		o := &v.Outcomes[i]
		if o.device != nil && o.Zone.Refund.Match(status, own, now) && o.device.Earned(own, now) && o.device.Issue(header, now) {
			o.Zone.Reporter.TrustsDevice()
		}
	}
}
