package limit

import (
	"cmp"
	"errors"
	"iter"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/perkey"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// An asking is one handler's question about one request: what its zones claim, and what the
// store says. Its memory comes from a pool, so it is for one goroutine, which calls release
// last, or never if something panics.
type asking struct {
	Subject
	buffers Buffers // memory for keys

	*Directive
	env Env
	now time.Time // zero until somebody has asked for it

	claims    []claim
	charges   []leakybucket.Charge   // that of each claim
	decisions []leakybucket.Decision // about each charge; zero if the store was not asked
	later     []*Zone                // concerned, and their claims need the body
	received  bool                   // the body was, or as much of it as may be
	static    []exemption
	due       []leakybucket.Settlement // of the verdict

	refused bool // an enforced zone refuses
	ends    bool // a zone refuses, or would: shadow charges are poured no more

	room struct { // where the first ones lie, beside all else
		charges   [1]leakybucket.Charge
		decisions [1]leakybucket.Decision
		claims    [1]claim
	}
}

// A claim is what one zone wants of a request: a charge, or a refusal that needs no store.
type claim struct {
	zone    *Zone
	refusal Reason        // None if the store is to be asked
	asked   bool          // the store was
	starved bool          // there was no room for the body that the zone wanted
	block   time.Duration // what is left of the block or ban by which it refuses
	device  *deviceClient // nil if the zone trusts no devices, or the request names no account
}

var askings = sync.Pool{New: func() any {
	a := new(asking)
	a.claims, a.charges, a.decisions = a.room.claims[:0], a.room.charges[:0], a.room.decisions[:0]
	return a
}}

func newAsking(r *http.Request, now time.Time, d *Directive, env Env) *asking {
	a := askings.Get().(*asking)
	a.Look(r)
	a.Overrides = env.Overrides()
	a.Directive, a.env, a.now = d, env, now
	return a
}

// release returns the memory to the pool. Nothing of the request stays in it.
func (a *asking) release() {
	for i := range a.claims { // which is cheaper than clear for as few as there are
		a.claims[i], a.charges[i], a.decisions[i] = claim{}, leakybucket.Charge{}, leakybucket.Decision{}
	}
	a.claims, a.charges, a.decisions = a.claims[:0], a.charges[:0], a.decisions[:0]
	if len(a.later) > 0 {
		clear(a.later)
		a.later = a.later[:0]
	}
	a.static, a.due, a.Directive, a.env, a.received = nil, nil, nil, nil, false
	a.refused, a.ends = false, false
	a.Forget()
	a.buffers.Clear()
	askings.Put(a)
}

// Now returns the time of the decision. Most requests do not ask for it.
func (a *asking) Now() time.Time {
	if a.now.IsZero() {
		a.now = time.Now()
	}
	return a.now
}

// claim collects the claims of all zones that concern the request and need no body. Before
// them come what exempts it from all zones, bans, and blocks that hold everywhere. The error
// is that of a matcher with which the request fails.
func (a *asking) claim(failed error) error {
	exempt, err := a.env.Exempts(&a.Subject)
	failed = cmp.Or(failed, err)
	switch {
	case exempt && failed == nil, failed == nil && a.Overrides != nil && a.claimBan():
		return nil
	case !exempt:
		for _, z := range a.env.Everywhere() {
			a.claimBlock(z)
		}
	}
	for _, z := range a.Zones {
		if a.claimed(z) {
			continue
		}
		err := failed
		switch {
		case err != nil:
		case z.plain:
			err = a.claimFor(z)
		default:
			err = a.concern(z)
		}
		if err != nil {
			if err = a.fail(z, err); err != nil {
				return err
			}
		}
	}
	return nil
}

// claimed reports whether a zone has decided about the request already: here, or in an
// earlier handler.
func (a *asking) claimed(z *Zone) bool {
	for i := range a.claims {
		if a.claims[i].zone == z {
			return true
		}
	}
	return a.Server.Shares() && decided(a.Request, z)
}

// concern lets a zone claim if it concerns the request, now or once the body is there.
func (a *asking) concern(z *Zone) error {
	switch concern, err := z.Concerns(&a.Subject); {
	case err != nil:
		return err
	case concern == Static && !z.Carries(&a.Subject):
		return nil
	case concern == Static:
		a.static = append(a.static, a.exempt(z))
		z.Reporter.Exempted()
		return nil
	case concern == Exempted:
		z.Reporter.Exempted()
		return nil
	case concern == Unmatched:
		return nil
	}
	return a.claimFor(z)
}

// claimFor adds the claim of a zone that concerns the request, unless it must wait for the body.
func (a *asking) claimFor(z *Zone) error {
	waits := !z.plain && !a.received && a.HasBody()
	if waits && z.ReadsFields() {
		a.later = append(a.later, z)
		return nil
	}
	if !z.plain && !z.Carries(&a.Subject) {
		return nil
	}
	k, why, skip := z.Find(&a.Subject, &a.buffers)
	if skip {
		z.keyless(&k)
		return nil
	}
	shadow := z.InShadow(a.Overrides, k.Name)
	switch {
	case why != None:
	case k.Address && a.Early(): // the address may be forged
		if shadow {
			return nil
		}
		why = EarlyData
	case k.Rule == perkey.Unlimited:
		z.Reporter.Exempted()
		return nil
	case k.Rule == perkey.Denied:
		why = Denied
	}
	if why != None {
		a.add(z, unlimited(z, k.Name, shadow))
		a.refuse(why, 0)
		z.keyless(&k)
		return nil
	}
	if z.plain {
		z.keyless(&k)
		z.Charge(a.next(z), &k, shadow, k.Limit.ClampCost(DefaultCost))
		return nil
	}
	cost, fromBody, err := z.cost(&a.Subject, k.Limit)
	switch {
	case err != nil:
		return err
	case waits && fromBody:
		a.later = append(a.later, z)
		return nil
	}
	z.keyless(&k)
	a.charge(z, &k, shadow, cost)
	a.claims[len(a.claims)-1].starved = a.Starved && (z.ReadsFields() || fromBody)
	return nil
}

// keyless counts a request whose key lacks a part.
func (z *Zone) keyless(k *Bucket) {
	if k.Lacking {
		z.Reporter.Keyless()
	}
}

// charge adds the charge of a zone, or the refusal by a block that is known to run.
func (a *asking) charge(z *Zone, k *Bucket, shadow bool, cost float64) {
	c := a.next(z)
	z.Charge(c, k, shadow, cost)
	if client := z.DeviceClient(&a.Subject, k); client != nil {
		c.Key = DeviceKey(k.Name, client)
		a.claims[len(a.claims)-1].device = client
	}
	if z.Block == nil {
		return
	}
	if block, runs := a.env.KnownBlock(a.Now(), c); runs {
		a.refuseBlocked(block)
	}
}

// add adds a claim.
func (a *asking) add(z *Zone, c leakybucket.Charge) { *a.next(z) = c }

// next adds a claim whose charge is yet to be written. It is valid until the next one is added.
func (a *asking) next(z *Zone) *leakybucket.Charge {
	n := len(a.claims)
	if n == cap(a.claims) || n == cap(a.charges) || n == cap(a.decisions) {
		a.claims, a.charges, a.decisions = slices.Grow(a.claims, 1), slices.Grow(a.charges, 1), slices.Grow(a.decisions, 1)
	}
	a.claims, a.charges, a.decisions = a.claims[:n+1], a.charges[:n+1], a.decisions[:n+1] // which release has cleared
	a.claims[n].zone = z
	return &a.charges[n]
}

// unlimited is a charge without a limit, of which refuse makes a refusal.
func unlimited(z *Zone, key string, shadow bool) leakybucket.Charge {
	return leakybucket.Charge{Zone: z.Name, Key: key, Shadow: shadow}
}

// refuse makes the last claim a refusal without asking a store, by what lasts so long.
func (a *asking) refuse(why Reason, lasts time.Duration) {
	last := len(a.claims) - 1
	a.claims[last].refusal, a.claims[last].block = why, lasts
	a.ends = true
	a.refused = a.refused || !a.charges[last].Shadow
}

// refuseBlocked makes the last claim a refusal by a block that is known to run.
func (a *asking) refuseBlocked(b RunningBlock) {
	last := len(a.claims) - 1
	c := &a.charges[last]
	a.env.Effective(c)
	seen := leakybucket.State{Level: b.Level, Leak: c.Limit.Leak}
	a.decisions[last].Level = c.Limit.Level(seen, leakybucket.Instant(a.Now().Sub(b.Seen).Microseconds()))
	why := Blocked
	if c.Limit.Oversize(c.Cost) {
		why = Oversize
	}
	a.refuse(why, b.Until.Sub(a.Now()))
}

// claimBan refuses a request whose client is banned, as one of the zones.
func (a *asking) claimBan() (refused bool) {
	ban := a.Ban(a.Now())
	if ban == nil || slices.ContainsFunc(a.Zones, a.claimed) {
		return false
	}
	by := BannedBy(slices.Values(a.Zones), &a.Subject)
	if by == nil {
		return false
	}
	// The zone need not match the request.
	a.add(by, unlimited(by, by.Key.Network(&a.Subject).Addr().String(), by.Shadow != nil))
	if a.refuse(Banned, ban.Left(a.Now())); a.refused {
		ban.Hit()
	}
	return a.refused
}

// BannedBy returns the zone that refuses a request whose client is banned: one that is not
// in shadow, if there is one. If a zone exempts the request, the ban does not hold, and
// BannedBy returns nil.
func BannedBy(zones iter.Seq[*Zone], s *Subject) (by *Zone) {
	for z := range zones {
		if exempt, err := z.Exempts(s); err != nil || exempt {
			return nil
		}
		if by == nil || by.Shadow != nil {
			by = z
		}
	}
	return by
}

// claimBlock refuses a request if its client is blocked by the `block ... everywhere` of a zone.
// Such a zone is keyed by the address alone and so trusts no devices.
func (a *asking) claimBlock(z *Zone) {
	if a.claimed(z) {
		return
	}
	c, can := z.BlockedBucket(&a.Subject, &a.buffers)
	if !can {
		return
	}
	if block, runs := a.env.ConfirmedBlock(a.Request.Context(), a.Now(), &c); runs {
		a.add(z, c)
		a.refuseBlocked(block)
	}
}

// fail counts a request for which a matcher of a zone has failed. It returns the matcher's
// own error if the zone is enforced, so that the request fails. In shadow it fails once, as
// enforcement asks no zone after that.
func (a *asking) fail(z *Zone, err error) error {
	k, _, _ := z.Find(&a.Subject, &a.buffers)
	shadow := z.InShadow(a.Overrides, k.Name)
	if !shadow || !a.ends {
		a.add(z, unlimited(z, k.Name, shadow))
		a.refuse(Error, 0)
		if !shadow {
			var o Outcome
			a.outcome(&o, len(a.claims)-1)
			o.report(a.Request, a.Now(), nil)
		}
	}
	option := "exempt in the global options"
	var failed *MatcherError
	if errors.As(err, &failed) {
		option, err = failed.Option, failed.Err
	}
	z.Reporter.Failed(option, err, !shadow)
	if shadow {
		return nil
	}
	return err
}

// An exemption is a zone that exempts a request as a static file.
type exemption struct {
	zone *Zone

	// charge is the charge of the request if the upstream answers it after all, or zero if
	// the zone would charge nothing.
	charge leakybucket.Charge
}

// exempt returns the exemption with what the zone would charge. That must be computed
// now, because later handlers may rewrite the request.
func (a *asking) exempt(z *Zone) exemption {
	e := exemption{zone: z}
	k, why, skip := z.Find(&a.Subject, &a.buffers)
	if why != None || skip || k.Rule != perkey.Limited {
		return e
	}
	cost, _, err := z.cost(&a.Subject, k.Limit)
	if err != nil {
		return e
	}
	z.Charge(&e.charge, &k, z.InShadow(a.Overrides, k.Name), cost)
	e.charge.Debt = 0 // nothing was reserved that a response corrects
	return e
}
