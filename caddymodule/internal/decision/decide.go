// Package decision is one request: what its zones decide, and what becomes of that. Begin
// with [Decide]. A plan collects charges and asks the store, an [Outcome] is what one zone
// decides, and a [Verdict] holds the outcomes until the request has been served: what it
// must wait for, what it is told, and how its charges are corrected. It imports rule, and
// writes no responses.
package decision

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"math"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/blocked"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/body"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/device"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/rule"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	bucketkey "github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

// A Directive is a handler as decisions know it.
type Directive struct {
	Zones  []*Zone
	Server *caddyhttp.Server // whose routes the handler is in; if nil, it is looked up in the context
	Unread Unread

	LimitsLog bool // a zone limits the lines of refusals in the access log
	Announces bool // responses get the rate-limit headers
}

// Unread is what nobody reads after a handler, as is known when the config is loaded. The
// zero value means that somebody may read everything.
type Unread struct {
	Verdict      bool // no other handler, matcher or log line reads it
	Placeholders bool
	Record       bool // no other handler of throttle or in_flight shares it
}

// An Env is what lies outside of a request and the zones of its handler. Its methods are
// called by many goroutines.
type Env interface {
	// Overrides are what was changed at run time: bans, limits and switches.
	Overrides() *override.Set

	// Exempts reports whether no zone is to charge the request. It is asked first.
	Exempts(*rule.Subject) (bool, error)

	// Everywhere returns the zones whose blocks hold everywhere, or nil if none runs.
	Everywhere() []*Zone

	// Believe returns the block that runs now for a charge. KnownBlock returns one only if it
	// makes it unnecessary to ask the store.
	Believe(ctx context.Context, now time.Time, c *leakybucket.Charge) (blocked.Block, bool)
	KnownBlock(now time.Time, c *leakybucket.Charge) (blocked.Block, bool)

	// InForce leaves a charge as Take would leave it now.
	InForce(*leakybucket.Charge)

	// Take asks the store. If that fails, the request passes.
	Take(ctx context.Context, now time.Time, charges []leakybucket.Charge, decisions []leakybucket.Decision) error

	// FellBack reports whether a decision was made without the shared store.
	FellBack(leakybucket.Decision) bool

	// Look reads at most so many bytes of the body ahead; see [body.Memory.Look].
	Look(r *http.Request, client netip.Prefix, most int64) (*body.Ahead, *body.Body)

	// NoAddress is called if a key needed the client's address and there was none.
	NoAddress()
}

// Decide finds out what the zones of a handler do about a request now: it collects their
// charges, reads the body if one depends on it, and asks the store. The Verdict is nil if no
// zone charges the request or exempts it as a static file. Otherwise it is also
// published to placeholders and to the access log. failed is the error of the handler's own
// matcher. The Ahead, if not nil, has replaced the request's body and must be ended, also
// after an error, which is that of a zone's matcher.
func Decide(r *http.Request, now time.Time, failed error, d *Directive, env Env) (*Verdict, *body.Ahead, error) {
	p := newPlan(r, now, d, env)
	p.failed = failed
	decided := false
	defer func() {
		if !decided { // a matcher or the store panics, and the connection ends
			p.Reader.End(nil)
		}
		p.release()
	}()
	verdict, reader, err := p.decide()
	decided = true
	return verdict, reader, err
}

func (p *plan) decide() (*Verdict, *body.Ahead, error) {
	if err := p.evaluate(); err != nil {
		return nil, nil, err
	}
	if p.unread > 0 {
		// Ask for the least it can cost first: a refused client uploads nothing.
		p.probe()
		if !p.take() || p.refused {
			return p.conclude(), nil, nil
		}
		p.readBody()
		p.again = true
		if err := p.evaluate(); err != nil {
			return nil, p.Reader, err
		}
	}
	p.take()
	return p.conclude(), p.Reader, nil
}

// A plan collects the charges of one handler's zones for a request, and the store's
// decisions. Its conclusion is a [Verdict]. It is for one goroutine. release returns its
// memory to a pool, and must be called last.
type plan struct {
	rule.Subject
	Buffers rule.Buffers // memory for the keys of the zones

	*Directive
	env      Env
	now      time.Time
	failed   error     // of the handler's own matcher
	again    bool      // the zones are asked once more, since the body is known
	earlier  *Verdict  // of the handlers that the request has passed, or nil
	verdict  *Verdict  // nil before there is an outcome
	outcomes []Outcome // in its memory

	charges   []leakybucket.Charge // memory for what the store is asked
	of        []int                // the index of each charge's outcome
	decisions []leakybucket.Decision

	began   []*Zone // shadow zones whose block began with the probe
	static  []exemption
	unread  int64 // how much of the body must be read to know all, in bytes
	refused bool  // an enforced zone refuses
}

var planPool = sync.Pool{New: func() any { return new(plan) }}

func newPlan(r *http.Request, now time.Time, d *Directive, env Env) *plan {
	p := planPool.Get().(*plan)
	p.Look(r)
	p.Overrides = env.Overrides()
	p.Directive, p.env, p.now = d, env, now
	if !d.Unread.Verdict {
		p.earlier, _ = p.Vars[verdictVar].(*Verdict)
	}
	return p
}

// release returns the memory of the plan to the pool. Nothing of the request stays in
// it.
func (p *plan) release() {
	p.verdict, p.outcomes = nil, nil
	p.reset()
	p.Directive, p.env, p.failed, p.earlier, p.again = nil, nil, nil, nil, false
	clear(p.began)
	p.began, p.refused = p.began[:0], false
	p.Forget()
	p.Buffers.Clear()
	planPool.Put(p)
}

// reset removes all outcomes.
func (p *plan) reset() {
	clear(p.outcomes)
	clear(p.charges)
	p.outcomes, p.charges, p.of, p.static = p.outcomes[:0], p.charges[:0], p.of[:0], nil
	p.unread = 0
}

// evaluate collects the charges of all zones that concern the request: the bucket, its
// limit and the cost. Before that come what exempts it from all zones, bans, and blocks that
// hold everywhere. It returns the error of a matcher with which the request fails.
func (p *plan) evaluate() error {
	exempt, err := p.env.Exempts(&p.Subject)
	failed := cmp.Or(p.failed, err)
	switch {
	case exempt && failed == nil, failed == nil && p.refuseBanned():
		return nil
	case !exempt:
		p.refuseBlockedEverywhere()
	}
	for _, z := range p.Zones {
		if p.decided(z) {
			continue
		}
		err := failed
		if err == nil {
			err = p.ask(z)
		}
		if err != nil {
			if err = p.fail(z, err); err != nil {
				return err
			}
		}
	}
	if p.NoAddress {
		p.env.NoAddress()
	}
	return nil
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

// refuseBanned refuses a request whose client is banned, as one of the zones.
func (p *plan) refuseBanned() (refused bool) {
	if p.Overrides == nil {
		return false
	}
	ban := p.Ban(p.now)
	if ban == nil || slices.ContainsFunc(p.Zones, p.decided) {
		return false
	}
	rest := ban.Left(p.now)
	by := BannedBy(slices.Values(p.Zones), &p.Subject)
	if by == nil {
		return false
	}
	if p.ban(by, rest); p.refused {
		ban.Hit()
		return true
	}
	for _, z := range p.Zones { // all in shadow, each group for itself
		if z != by && (z.Shadow != by.Shadow || z.Shadow == rule.ShadowOwn) {
			p.ban(z, rest)
		}
	}
	return false
}

// ban refuses the request because its client is banned for so long, and counts that for a
// zone, which need not match the request.
func (p *plan) ban(z *Zone, rest time.Duration) {
	p.add(z, z.Key.Network(&p.Subject).Addr().String(), z.Shadow).Block = rest
	p.refuse(rule.Banned)
}

// BannedBy returns the zone that refuses a request whose client is banned: one that is not
// in shadow, if there is one. If a zone exempts the request, the ban does not hold, and
// BannedBy returns nil.
func BannedBy(zones iter.Seq[*Zone], s *rule.Subject) (by *Zone) {
	for z := range zones {
		if exempt, err := z.Exempts(s); err != nil || exempt {
			return nil
		}
		if by == nil || by.Shadow != 0 {
			by = z
		}
	}
	return by
}

// refuseBlockedEverywhere refuses a request if its client is blocked by `block ... everywhere`.
func (p *plan) refuseBlockedEverywhere() {
	for _, z := range p.env.Everywhere() {
		if p.decided(z) {
			continue
		}
		if c, block, runs := z.blockedEverywhere(&p.Subject, p.now, &p.Buffers, p.env); runs {
			o := p.add(z, c.Key, c.Shadow)
			o.Limit, o.debt, o.ceiling = c.Limit, c.Debt, c.Ceiling
			p.refuseBlocked(block)
		}
	}
}

// blockedEverywhere returns the block of a client by a zone whose blocks hold everywhere, if
// one is known and runs, and a charge that names the bucket. Such a zone is keyed by the
// address alone and so trusts no devices.
func (z *Zone) blockedEverywhere(s *rule.Subject, now time.Time, b *rule.Buffers, env Env) (c leakybucket.Charge, block blocked.Block, runs bool) {
	c, _, can := z.BlockedBucket(s, b)
	if can {
		block, runs = env.Believe(s.Request.Context(), now, &c)
	}
	return c, block, runs
}

// fail counts a request for which a matcher of a zone has failed. It returns the matcher's
// own error if the zone is enforced, so that the request fails. For a group of shadow the
// request fails once, as enforcement asks no zone after that.
func (p *plan) fail(z *Zone, err error) error {
	k, _, _ := z.Find(&p.Subject, &p.Buffers)
	shadow := z.GroupOf(p.Overrides, k.Name)
	enforced := shadow == 0
	if enforced || shadow >= rule.ShadowOwn || !p.ends(shadow, false) {
		o := p.add(z, k.Name, shadow)
		p.refuse(rule.Error)
		if enforced {
			o.report(p.Request, p.now, nil)
		}
	}
	option := "exempt in the global options"
	var failed *rule.MatcherError
	if errors.As(err, &failed) {
		option, err = failed.Option, failed.Err
	}
	z.Reporter.Failed(option, err, enforced)
	if enforced {
		return err
	}
	return nil
}

// ask adds the charge of a zone if the zone concerns the request, or its refusal if that
// needs no store.
func (p *plan) ask(z *Zone) error {
	concern, err := z.Concerns(&p.Subject)
	if concern != rule.Concerned {
		p.spare(z, concern)
		return err
	}
	if z.WantsBody(&p.Subject) {
		p.unread = max(p.unread, z.Cost.MaxBody)
		return nil
	}
	k, why, skip := z.Find(&p.Subject, &p.Buffers)
	if k.Lacking && (!p.again || z.Key.FromBody()) {
		z.Reporter.Keyless()
	}
	if skip {
		return nil
	}
	shadow := z.GroupOf(p.Overrides, k.Name)
	if shadow != 0 && p.earlier.ended(shadow) || p.decideByKey(z, &k, why, shadow) {
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
	case concern == rule.Exempted || concern == rule.Static:
		z.Reporter.Exempted()
	}
}

// decideByKey reports whether the zone refuses the request, or has no limit for it,
// because of its key alone. If it refuses, that is added.
func (p *plan) decideByKey(z *Zone, k *rule.Bucket, why rule.Reason, shadow leakybucket.Shadow) bool {
	switch {
	case why != rule.None:
	case k.Address && p.Early(): // the address may be forged
		if shadow != 0 {
			return true
		}
		why = rule.EarlyData
	case k.Rule == bucketkey.Unlimited:
		if !p.again || z.Key.FromBody() {
			z.Reporter.Exempted()
		}
		return true
	case k.Rule == bucketkey.Denied:
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
	o.Limit, o.Cost = k.Limit, cost
	o.debt, o.ceiling, o.probe = z.Terms(k.Limit, cost)
	if client := z.DeviceClient(&p.Subject, k); client != nil {
		o.device = &knownDevice{client: client}
		o.chargeDevice()
	}
	if z.Block != nil {
		block, runs := p.knownBlock(o)
		if runs && o.chargesDevice() {
			o.chargeAccount()
			block, runs = p.knownBlock(o)
		}
		if runs {
			p.refuseBlocked(block)
			return nil
		}
	}
	o.starved = p.Starved && (z.Key.FromBody() || readsBody)
	if wantsBody {
		p.unread = max(p.unread, z.Cost.MaxBody)
	}
	o.asked = true
	return nil
}

// knownBlock returns the block of an outcome's bucket that makes it unnecessary to ask the store.
func (p *plan) knownBlock(o *Outcome) (blocked.Block, bool) {
	p.charges = append(p.charges[:0], o.Charge())
	return p.env.KnownBlock(p.now, &p.charges[0])
}

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

// An exemption is a zone that exempts a request as a static file.
type exemption struct {
	zone *Zone

	// charge is the charge of the request if the upstream answers it after all, or zero if
	// the zone would charge nothing.
	charge leakybucket.Charge
}

// exempt returns the exemption with what the zone would charge. That must be computed
// now, because later handlers may rewrite the request.
func (p *plan) exempt(z *Zone) exemption {
	e := exemption{zone: z}
	k, why, skip := z.Find(&p.Subject, &p.Buffers)
	if why != rule.None || skip || k.Rule != bucketkey.Limited {
		return e
	}
	cost, _, _, err := z.Cost.Charged(&p.Subject, k.Limit)
	if err != nil {
		return e
	}
	e.charge = z.Charge(&k, z.GroupOf(p.Overrides, k.Name), cost)
	e.charge.Debt = 0 // nothing was reserved that a response corrects
	return e
}

// add appends the outcome of a zone. It is filled in place, where it stays, because outcomes
// are large.
func (p *plan) add(z *Zone, key string, shadow leakybucket.Shadow) *Outcome {
	if p.verdict == nil {
		p.verdict = newVerdict(len(p.Zones), p.Unread)
		p.outcomes = p.verdict.Outcomes[:0]
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
	o.Zone, o.Key, o.Shadow = z, key, shadow
	return o
}

// refuse makes the last outcome a refusal without asking a store.
func (p *plan) refuse(why rule.Reason) {
	o := &p.outcomes[len(p.outcomes)-1]
	o.Refuse(why)
	p.refused = p.refused || o.Shadow == 0
}

// refuseBlocked makes the last outcome a refusal by a block that is known to run.
func (p *plan) refuseBlocked(b blocked.Block) {
	o := &p.outcomes[len(p.outcomes)-1]
	c := o.Charge()
	p.env.InForce(&c)
	o.terms = terms{c.Limit, c.Cost, c.Debt, c.Ceiling}
	seen := leakybucket.State{Level: b.Level, Leak: o.Limit.Leak}
	o.level = o.Limit.Level(seen, leakybucket.Instant(p.now.Sub(b.Seen).Microseconds()))
	o.Block = b.Until.Sub(p.now)
	why := rule.Blocked
	if o.Limit.Oversize(o.Cost) {
		why = rule.Oversize
	}
	p.refuse(why)
}

// readBody reads as much of the body as the zones want, and removes all outcomes. The zones
// must be asked again.
func (p *plan) readBody() {
	for i := range p.outcomes {
		if o := &p.outcomes[i]; o.Shadow != 0 && o.Began {
			p.began = append(p.began, o.Zone)
		}
	}
	most := p.unread
	p.reset()
	p.ReadBody(p.env.Look, most)
}

// probe turns all charges into probes, which pour nothing.
func (p *plan) probe() {
	for i := range p.outcomes {
		p.outcomes[i].probe = true
	}
}

// take asks the store about all charges, and once more if a device has used up what it may:
// then its account is charged. If a zone refuses without asking, none of its group are asked
// about, and if it is enforced none at all: a refused request must not be charged by other
// zones. If even the memory store fails, take returns false and the request passes.
func (p *plan) take() bool {
	p.of = p.of[:0]
	for i := range p.outcomes {
		if o := &p.outcomes[i]; o.asked {
			if o.asked = !p.ends(o.Shadow, false); o.asked {
				p.of = append(p.of, i)
			}
		}
	}
	if !p.askStore() || p.fallBack() && !p.askStore() {
		return false
	}
	p.answered()
	return true
}

// askStore asks about the charges in p.of. If that fails, their zones count as if they had not
// been asked.
func (p *plan) askStore() bool {
	if len(p.of) == 0 {
		return true
	}
	p.charges = p.charges[:0]
	for _, of := range p.of {
		p.charges = append(p.charges, p.outcomes[of].Charge())
	}
	p.decisions = append(p.decisions[:0], make([]leakybucket.Decision, len(p.charges))...)
	if p.env.Take(p.Request.Context(), p.now, p.charges, p.decisions) == nil {
		return true
	}
	for i := range p.outcomes {
		if o := &p.outcomes[i]; o.asked {
			o.asked, o.dropped = false, true
			o.answered(&leakybucket.Charge{}, &leakybucket.Decision{Undecided: true})
		}
	}
	return false
}

// answered notes the store's decisions about the charges in p.of.
func (p *plan) answered() {
	for i, of := range p.of {
		o := &p.outcomes[of]
		o.answered(&p.charges[i], &p.decisions[i])
		p.refused = p.refused || o.Shadow == 0 && !o.fits
	}
}

// fallBack looks for devices whose buckets the store has found full, and charges the
// accounts' buckets instead. It returns true if the store must be asked again.
func (p *plan) fallBack() bool {
	for i := range p.of {
		if p.overflows(i) {
			p.chargeAccounts()
			return true
		}
	}
	return false
}

// chargeAccounts leaves in p.of what the store must be asked again. Its frame is large, and few
// requests come here.
func (p *plan) chargeAccounts() {
	poured := false
	var again [math.MaxUint8 + 1]bool // by group
	for i := range p.of {
		again[p.charges[i].Shadow] = again[p.charges[i].Shadow] || p.overflows(i)
		poured = poured || p.decisions[i].Poured
	}
	left := 0
	for i, of := range p.of {
		o, d := &p.outcomes[of], &p.decisions[i]
		switch {
		case p.overflows(i):
			o.chargeAccount()
		case poured && !again[p.charges[i].Shadow]:
			o.answered(&p.charges[i], d)
			continue // only shadows of another group are full
		case d.Began:
			p.began = append(p.began, o.Zone)
		}
		p.of[left] = of
		left++
	}
	p.of = p.of[:left]
}

// overflows reports whether the i-th charge is a device's and does not fit.
func (p *plan) overflows(i int) bool {
	return p.outcomes[p.of[i]].chargesDevice() && !p.decisions[i].Fits && !p.decisions[i].Undecided
}

// conclude returns the outcomes in the zones of this handler, or nil if none of them
// is concerned. It also publishes them to those who may read them.
func (p *plan) conclude() *Verdict {
	kept := 0
	for i := range p.outcomes {
		o := &p.outcomes[i]
		if o.asked && p.env.FellBack(o.was()) {
			o.Zone.Reporter.FellBack()
		}
		p.finish(o)
	}
	for i := range p.outcomes {
		if o := &p.outcomes[i]; o.Decision() != Withdrawn {
			if kept < i {
				p.outcomes[kept] = *o
			}
			kept++
		}
	}
	clear(p.outcomes[kept:])
	v := p.verdict
	switch {
	case kept > 0:
	case len(p.static) == 0:
		if v != nil {
			v.Outcomes = p.outcomes[:0] // which are clear, unlike those that they have outgrown
			v.Forget()
		}
		if p.earlier == nil && !p.Unread.Placeholders && p.Replacer() != nil {
			p.Replacer().Map(uncharged(p.Request.Context()))
		}
		return nil
	case v == nil:
		v = newVerdict(0, p.Unread)
	}
	v.Outcomes = p.outcomes[:kept]
	v.static = p.static
	if !p.Unread.Verdict {
		v.publish(p)
	}
	return v
}
