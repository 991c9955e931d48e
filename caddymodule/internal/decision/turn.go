package decision

import (
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admission"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/body"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/fairqueue"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/rule"
	bucketkey "github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

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

// checkTurns refuses the request if a zone with share would do so at once. Then the
// store is not asked, and the body not read.
func (p *plan) checkTurns() {
	if len(p.charges) == 0 && p.unread == 0 && !p.buffersBody() {
		return // an early refusal would save nothing
	}
	for i := range p.outcomes {
		if p.outcomes[i].Zone.Delay != nil {
			return // by the end of the delay, all may be different
		}
	}
	for i := range p.outcomes {
		o := &p.outcomes[i]
		if o.Turn == nil || o.Shadow != 0 || o.Reason() != rule.None {
			continue
		}
		e := o.entry()
		if why := e.Zone.Ask(&e); why != admission.Admitted {
			o.Refuse(o.Zone.reasonOf(why))
			p.refused = true
		}
	}
}

// buffersBody reports whether a zone wants to read the body before slots are taken, and
// the client has not sent all of it.
func (p *plan) buffersBody() bool {
	for i := range p.outcomes {
		if o := &p.outcomes[i]; o.Zone.RequestBuffer > 0 && o.Shadow == 0 {
			return !body.Received(p.Request)
		}
	}
	return false
}

// reasonOf returns why the zone refuses a request whose admission ended so.
func (z *Zone) reasonOf(why admission.Why) rule.Reason {
	switch why {
	case admission.TooLong:
		return rule.Wait
	case admission.TimedOut:
		if z.Share != nil {
			return rule.Timeout
		}
		return rule.InFlight
	case admission.NoSlot:
		return rule.InFlight
	}
	return rule.Waiting
}
