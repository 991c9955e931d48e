package decision

import (
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admission"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/fairqueue"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/pass"
)

// A Standing is the rank of a client in a zone with share, and what else it takes
// turns by.
type Standing struct {
	Rank fairqueue.Rank
	Why  string // what gives it the rank, for the access log

	// Pass is the id of its valid pass, and Member what the upstream knows a member by.
	// Either may be empty. A member takes turns by that alone.
	Pass, Member string

	// Tries is how often the client was refused in a row before.
	Tries int

	// Client is what the client's pass tells. It is not known in a zone that sends none.
	Client pass.Client
}

// A Turn is how a request takes turns for the slots of a zone with share.
type Turn struct {
	admission.Turn
	Standing Standing
}

// turn returns a new turn of a request, or nil if the zone has no share.
func (r *Rule) turn(s *Subject, b *buffers) *Turn {
	if r.Share == nil {
		return nil
	}
	t := &Turn{Standing: Standing{Rank: fairqueue.First}}
	if r.Standing != nil {
		t.Standing = r.Standing(s)
	}
	t.Rank = t.Standing.Rank
	if t.Rank == fairqueue.Member && t.Standing.Member != "" {
		t.Keys[0] = "member:" + t.Standing.Member
		return t
	}
	k, lacking := r.Share.own(s, b)
	if lacking != complete {
		k = r.Share.fallback(s, ByClientIP)
	}
	t.Keys[0] = "share:" + k.name
	if t.Standing.Pass != "" {
		t.Keys[1] = "pass:" + t.Standing.Pass
	}
	return t
}

// checkTurns refuses the request if a zone with share would do so at once. The store
// is not asked then.
func (p *Plan) checkTurns() {
	if len(p.charges) == 0 {
		return
	}
	for i := range p.outcomes {
		if p.outcomes[i].Rule.Delay != nil {
			return // by the end of the delay, all may be different
		}
	}
	for i := range p.outcomes {
		o := &p.outcomes[i]
		if o.Turn == nil || o.Shadow || o.Reason() != None {
			continue
		}
		e := o.entry()
		if why := e.Zone.Ask(&e); why != admission.Admitted {
			o.Refuse(o.Rule.reasonOf(why))
			p.refused = true
		}
	}
}

// reasonOf returns why the zone refuses a request whose admission ended so.
func (r *Rule) reasonOf(why admission.Why) Reason {
	switch why {
	case admission.TooLong:
		return Wait
	case admission.TimedOut:
		if r.Share != nil {
			return Timeout
		}
		return InFlight
	case admission.NoSlot:
		return InFlight
	}
	return Waiting
}
