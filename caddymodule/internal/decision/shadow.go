package decision

import (
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/rule"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// ends reports whether the request ends for a group, because an enforced zone or one of
// the group refuses it. Unless answered, only refusals without asking the store count.
func (p *plan) ends(group leakybucket.Shadow, answered bool) bool {
	if p.refused || group == 0 {
		return p.refused
	}
	for i := range p.outcomes {
		o := &p.outcomes[i]
		if o.Shadow == group && (o.Reason() != rule.None || answered && (o.noSlot || o.asked && !o.fit)) {
			return true
		}
	}
	return false
}

// ended reports whether the request has ended for a group in an earlier handler.
func (res *Result) ended(group leakybucket.Shadow) bool {
	for ; res != nil && group < rule.ShadowBeside; res = res.next {
		for i := range res.Outcomes {
			if o := &res.Outcomes[i]; o.Shadow == group && o.Reason() != rule.None {
				return true
			}
		}
	}
	return false
}
