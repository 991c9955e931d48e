package decision

import (
	"cmp"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/device"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/pass"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/refusal"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/rule"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	bucketkey "github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

// A knownDevice is what a request's device cookies tell to one zone.
type knownDevice struct {
	client  *device.Client
	account string // the account's key, if the device's bucket is charged instead
	renewed bool   // the device is known and keeps its place
}

// chargesDevice reports whether a device's bucket is charged instead of its account's.
func (o *Outcome) chargesDevice() bool { return o.device != nil && o.device.account != "" }

// chargeDevice makes the outcome charge the bucket of the client's device, if one is
// known, in the place of the account's. It reports whether one is.
func (o *Outcome) chargeDevice() bool {
	key := rule.DeviceKey(o.Key, o.device.client)
	if key == "" {
		return false
	}
	o.device.account, o.Key = o.Key, key
	return true
}

// chargeAccount makes the outcome charge the account's bucket again.
func (o *Outcome) chargeAccount() {
	o.Key, o.device.account = o.device.account, ""
}

const placeSought = "looking for a place for another device of an account; this one is not trusted"

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
func (o *Outcome) newPlace(take taker) (i int, found bool) {
	var places [device.Most]leakybucket.Charge
	var decisions [device.Most]leakybucket.Decision
	for i := range places {
		places[i] = o.place(i)
		places[i].Probe = true
	}
	if !take(placeSought, places[:], decisions[:]) {
		return 0, false
	}
	first := rand.IntN(device.Most) // another browser may be looking for a place, too
	for n := range places {
		if i = (first + n) % device.Most; decisions[i].Fits {
			places[i].Probe = false
			return i, take(placeSought, places[i:i+1], decisions[i:i+1]) && decisions[i].Fits
		}
	}
	return 0, false
}

// A taker asks the store for another charge of a request that is being answered. It returns
// false if that fails, after it has told of the failure.
type taker func(failure string, charges []leakybucket.Charge, decisions []leakybucket.Decision) bool

// SendCookies adds device cookies and passes to a response that has earned them, before its
// headers are sent.
func (v *Verdict) SendCookies(r *http.Request, status int, header http.Header, take taker) {
	v.trust(status, header, take)
	v.sendPasses(r, status, header, take)
}

// trust adds device cookies to a response that has earned them. A known device keeps its
// place, which [Verdict.Settle] fills.
func (v *Verdict) trust(status int, header http.Header, take taker) {
	now := time.Now()
	var before http.Header // another zone's cookie is no log-in
	for i := range v.Outcomes {
		o := &v.Outcomes[i]
		if o.device == nil {
			continue
		}
		if before == nil {
			before = header.Clone()
		}
		if !o.device.client.Earned(status, before, now) {
			continue
		}
		client := o.device.client
		place := client.Place()
		if _, known := client.Device(); known {
			o.device.renewed = true
		} else if free, found := o.newPlace(take); found {
			place = free
		} else {
			continue
		}
		client.Issue(header, place, now)
	}
}

// busy returns how a request is refused that did not get its turn.
func (o *Outcome) busy() *refusal.Busy {
	standing := &o.Turn.Standing
	b := &refusal.Busy{Reload: standing.Tries < pass.Reloads}
	if standing.Client.Known() && o.early() <= 0 {
		b.Pass = func(header http.Header) {
			o.countPass(standing.Client.Refused(header, time.Now(), o.RetryAfter(), o.ClientIP()))
		}
		b.NoPass = func() {
			o.countPass(standing.Client.RefusedApart(time.Now(), o.RetryAfter(), o.ClientIP()))
		}
	}
	return b
}

// early returns for how long a member is still to stay away who came too early, and has
// waited for its time or was refused at once.
func (o *Outcome) early() time.Duration { return o.Turn.Standing.Early - o.Delay }

// countPass counts what has happened to the client's pass.
func (o *Outcome) countPass(e pass.Event) {
	if e != pass.None {
		o.Zone.Reporter.CountPass(e)
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
		event := c.Answered(status, header, now, func(account pass.ID) bool { return o.join(account, now, take) })
		o.Zone.Reporter.Answered(c.New(), event)
		o.countPass(event)
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
func (o *Outcome) join(account pass.ID, now time.Time, take taker) bool {
	network := "unknown"
	if addr := o.ClientIP(); addr.IsValid() {
		network = bucketkey.ClientPrefix(addr, o.Zone.Key.IPv4Bits, o.Zone.Key.IPv6Bits).Addr().String()
	}
	at := memberPlace{network, account}
	if _, joined := o.Zone.members.Get(at, now); joined {
		return true
	}
	charges := []leakybucket.Charge{{Zone: o.Zone.Name, Key: "@members/" + network, Cost: 1, Limit: rule.MemberLimit}}
	decisions := make([]leakybucket.Decision, 1)
	if !take("counting the new members of a network; this client is not one of them", charges, decisions) || !decisions[0].Fits {
		return false
	}
	o.Zone.members.Put(at, struct{}{}, now.Add(time.Hour), now)
	return true
}
