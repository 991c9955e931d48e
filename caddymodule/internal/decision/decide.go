// Package decision is one request: what its zones decide, and what becomes of that. Begin
// with [Decide]. A plan collects charges and the store's answers, an [Outcome] is what one
// zone decides, and a [Verdict] holds the outcomes until the request has been served: what
// it must wait for, what it is told, and how its charges are corrected. It imports rule, and
// it neither waits nor writes responses.
package decision

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admission"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/blocked"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/body"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/rule"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// A Request is what a handler asks about.
type Request struct {
	*http.Request
	Zones  []*Zone           // of the handler
	Server *caddyhttp.Server // serves the request; if nil, it is looked up in the context
	Failed error             // of the handler's own matcher
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

	// Believe returns the block that runs for a charge. KnownBlock returns one only if it
	// makes it unnecessary to ask the store.
	Believe(context.Context, *leakybucket.Charge) (blocked.Block, bool)
	KnownBlock(*leakybucket.Charge) (blocked.Block, bool)

	// Take asks the store. If that fails, the request passes.
	Take(context.Context, []leakybucket.Charge, []leakybucket.Decision) error

	// FellBack reports whether a decision was made without the shared store.
	FellBack(*leakybucket.Decision) bool

	// Look reads at most so many bytes of the body ahead; see [body.Memory.Look].
	Look(r *http.Request, client netip.Prefix, most int64) (*body.Ahead, *body.Body)

	// NoAddress is called if a key needed the client's address and there was none.
	NoAddress()
}

// Decide finds out what the zones of a handler do about a request: it collects their
// charges, reads the body if one depends on it, and asks the store. The Verdict is nil if no
// zone is concerned. Otherwise it is also published to placeholders and to the access log.
// The Ahead, if not nil, has replaced the request's body and must be ended, also after an
// error, which is that of a matcher.
func Decide(q Request, env Env) (*Verdict, *body.Ahead, error) {
	p := newPlan(q, env)
	defer p.release()
	if err := p.evaluate(); err != nil {
		return nil, nil, err
	}
	if p.unread > 0 {
		// Ask for the least it can cost first: a refused client uploads nothing.
		p.checkSlots()
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
	p.checkSlots()
	p.take()
	return p.conclude(), p.Reader, nil
}

// evaluate collects the charges of all zones that concern the request: the bucket, its
// limit and the cost. It returns the error of a matcher with which the request fails.
func (p *plan) evaluate() error {
	exempt, err := p.env.Exempts(&p.Subject)
	failed := cmp.Or(p.failed, err)
	switch {
	case exempt && failed == nil, failed == nil && p.refuseBanned():
		return nil
	case !exempt:
		p.refuseBlockedEverywhere()
	}
	for _, z := range p.zones {
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

// refuseBanned refuses a request whose client is banned, as one of the zones.
func (p *plan) refuseBanned() (refused bool) {
	now := time.Now()
	ban := p.Ban(now)
	if ban == nil || slices.ContainsFunc(p.zones, p.decided) {
		return false
	}
	rest := ban.Left(now)
	by := BannedBy(slices.Values(p.zones), &p.Subject)
	if by == nil {
		return false
	}
	if p.ban(by, rest); p.refused {
		ban.Hit()
		return true
	}
	for _, z := range p.zones { // all in shadow, each group for itself
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
		if c, block, runs := z.BlockedEverywhere(&p.Subject, &p.Buffers, p.env); runs {
			p.add(z, c.Key, c.Shadow).setCharge(&c)
			p.refuseBlocked(block)
		}
	}
}

// BlockedEverywhere returns the block of a client by a zone whose blocks hold everywhere, if
// one is known and runs, and a charge that names the bucket. Such a zone is keyed by the
// address alone and so trusts no devices.
func (z *Zone) BlockedEverywhere(s *rule.Subject, b *rule.Buffers, env Env) (c leakybucket.Charge, block blocked.Block, runs bool) {
	c, _, can := z.BlockedBucket(s, b)
	if can {
		block, runs = env.Believe(s.Request.Context(), &c)
	}
	return c, block, runs
}

// fail counts a request for which a matcher of a zone has failed. It returns the matcher's
// own error if the zone is enforced, so that the request fails. For a group of shadow the
// request fails once, as enforcement asks no zone after that.
func (p *plan) fail(z *Zone, err error) error {
	k, _, _ := z.Find(&p.Subject, &p.Buffers)
	shadow := z.GroupOf(&p.Subject, k.Name)
	enforced := shadow == 0
	if enforced || shadow >= rule.ShadowOwn || !p.ends(shadow, false) {
		o := p.add(z, k.Name, shadow)
		p.refuse(rule.Error)
		if enforced {
			o.report(time.Now(), nil)
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

// take asks the store, and once more if a device has used up what it may: then its
// account is charged. If even the memory store fails, take returns false and the
// request passes.
func (p *plan) take() bool { return p.takeOnce() && (!p.fallBack() || p.takeOnce()) }

func (p *plan) takeOnce() bool {
	p.keepCharges()
	if len(p.charges) > 0 {
		if p.env.Take(p.Request.Context(), p.charges, p.decisions) != nil {
			p.dropCharges()
			return false
		}
	}
	p.setDecisions()
	return true
}

// Preview returns what a zone would do about a request as far as that is known without the
// store, or nil if the zone is not concerned.
func Preview(r *http.Request, z *Zone, env Env) (*Outcome, error) {
	p := newPlan(Request{Request: r, Zones: []*Zone{z}}, env)
	defer p.release()
	p.preview = true
	if err := p.ask(z); err != nil {
		return nil, err
	}
	if p.unread > 0 {
		p.readBody()
		if err := p.ask(z); err != nil {
			return nil, err
		}
	}
	if len(p.outcomes) == 0 {
		return nil, nil
	}
	return &p.outcomes[0], nil // which is that of the only zone, and so stays
}

// ErrorSlots returns the entries of enforced zones of which a request in an error route
// needs a slot and holds none. turns says that clients take turns for one that it needs or
// holds.
func ErrorSlots(q Request, env Env) (entries []admission.Entry, turns bool) {
	p := newPlan(q, env)
	defer p.release()
	p.preview = true
	p.LeaveBody()
	if exempt, err := env.Exempts(&p.Subject); exempt || err != nil {
		return nil, false
	}
	for _, z := range p.zones {
		switch {
		case z.InFlight == 0:
		case p.earlier.HoldsSlot(z.Enforced):
			turns = turns || z.Share != nil
		default:
			_ = p.ask(z) // a matcher that errs here matches nothing: there is no other error route
		}
	}
	for i := range p.outcomes {
		if e, takes := p.outcomes[i].Slot(); takes {
			entries = append(entries, e)
			turns = turns || p.outcomes[i].Turn != nil
		}
	}
	return entries, turns
}
