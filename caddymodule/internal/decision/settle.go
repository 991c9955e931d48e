package decision

import (
	"cmp"
	"context"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/device"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/rule"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/settlement"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/staticfile"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// Needs are what the zones of a handler want of the response to a request that they let in.
type Needs struct {
	Cookies   bool // it may bring the client a device cookie
	Settles   bool // it may change charges of this request, or of others
	OwnHeader bool // and its header says whether it earns a refund
}

// Needs returns what the zones want. A nil verdict wants nothing.
func (v *Verdict) Needs() (n Needs) {
	if v == nil {
		return n
	}
	for i := range v.Outcomes {
		o := &v.Outcomes[i]
		n.Cookies = n.Cookies || o.device != nil
		n.Settles = n.Settles || o.settles()
		n.OwnHeader = n.OwnHeader || len(o.Zone.Refund) > 0
	}
	n.Settles = n.Settles || len(v.static) > 0
	return n
}

// GiveBack appends the settlements that give back all that was poured, for a request that
// costs nothing, because it was refused further in or its client left while it waited. A
// charge with a place in a queue is cancelled: if other requests have queued behind it, its
// place stays empty.
func (v *Verdict) GiveBack(due []leakybucket.Settlement) []leakybucket.Settlement {
	for i := range v.Outcomes {
		if o := &v.Outcomes[i]; o.poured {
			due = append(due, leakybucket.Settlement{Charge: o.Charge(), Was: o.was(), Diff: -o.Cost, Cancel: o.Zone.Delay != nil})
		}
	}
	return due
}

func (o *Outcome) settles() bool {
	return (o.Zone.Settle != nil || len(o.Zone.Refund) > 0 && o.poured) && o.asked && o.decision != Withdrawn && o.reason == rule.None
}

// Settle appends the settlements that correct the charges to what the request really
// cost, which is known now, also if it was exempt as one for a static file and the upstream has
// answered it.
func (v *Verdict) Settle(r *http.Request, now time.Time, due []leakybucket.Settlement, observer *settlement.Observer) []leakybucket.Settlement {
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
			cost = o.Zone.Refund.Actual(observer, reserved, now)
			refunded = cost < reserved
		}
		o.Zone.Reporter.Settled(refunded, known)
		o.settledCost, o.settled = cost, true
		if diff := cost - reserved; diff != 0 {
			due = append(due, leakybucket.Settlement{Charge: o.Charge(), Was: o.was(), Diff: diff})
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
func (o *Outcome) newPlace(r *http.Request, now time.Time, take taker) (i int, found bool) {
	var places [device.Most]leakybucket.Charge
	var decisions [device.Most]leakybucket.Decision
	for i := range places {
		places[i] = o.place(i)
		places[i].Probe = true
	}
	if take(r.Context(), now, places[:], decisions[:]) != nil {
		return 0, false
	}
	first := rand.IntN(device.Most) // another browser may be looking for a place, too
	for n := range places {
		if i = (first + n) % device.Most; decisions[i].Fits {
			places[i].Probe = false
			return i, take(r.Context(), now, places[i:i+1], decisions[i:i+1]) == nil && decisions[i].Fits
		}
	}
	return 0, false
}

// A taker asks the store, as [Env]'s Take does, for another charge of a request that is being
// answered.
type taker func(context.Context, time.Time, []leakybucket.Charge, []leakybucket.Decision) error

// SendCookies adds device cookies to a response that has earned them, before its headers are
// sent. own are those fields of the header that come from within. A known device keeps its
// place, which [Verdict.Settle] fills.
func (v *Verdict) SendCookies(r *http.Request, now time.Time, status int, header, own http.Header, take taker) {
	for i := range v.Outcomes {
		o := &v.Outcomes[i]
		if o.device == nil || !o.Zone.Refund.Match(status, own, now) || !o.device.client.Earned(own, now) {
			continue
		}
		client := o.device.client
		place := client.Place()
		if _, known := client.Device(); known {
			o.device.renewed = true
		} else if free, found := o.newPlace(r, now, take); found {
			place = free
		} else {
			continue
		}
		client.Issue(header, place, now)
	}
}
