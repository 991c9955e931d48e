package decision

import (
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// The groups of shadow: which word has put a zone there. Zones of one group are judged
// together, as after the edit that takes the word away. Groups from ShadowOwn on are of
// one zone, which has a word of its own. A group has a meaning for one request only.
const (
	ShadowGlobal leakybucket.Shadow = iota + 1 // shadow in the global options
	ShadowSwitch                               // the switch at run time for all zones
	ShadowBeside                               // shadow beside the zones of a handler
	ShadowOwn                                  // shadow or enforce in the zone, or its switch at run time
)

// shadow returns the group of a request with this key, or 0 if it is enforced.
func (r *Rule) shadow(s *Subject, key string) leakybucket.Shadow {
	switch {
	case r.Shadow == ShadowOwn || !r.chooses(key):
		return ShadowOwn
	case r.Shadow != 0:
		return r.Shadow
	case s.Overrides == nil:
		return 0
	}
	now := time.Now()
	switch {
	case !s.Overrides.Shadow(r.Name, now):
		return 0
	case s.Overrides.AllShadow(now):
		return ShadowSwitch
	}
	return ShadowOwn
}

// ends reports whether the request ends for a group, because an enforced zone or one of
// the group refuses it. Unless answered, only refusals without asking the store count.
func (p *Plan) ends(group leakybucket.Shadow, answered bool) bool {
	if p.refused || group == 0 {
		return p.refused
	}
	for i := range p.outcomes {
		o := &p.outcomes[i]
		if o.Shadow == group && (o.Reason() != None || answered && (o.noSlot || o.asked && !o.fit)) {
			return true
		}
	}
	return false
}

// ended reports whether the request has ended for a group in an earlier handler.
func (res *Result) ended(group leakybucket.Shadow) bool {
	for ; res != nil && group < ShadowBeside; res = res.next {
		for i := range res.Outcomes {
			if o := &res.Outcomes[i]; o.Shadow == group && o.Reason() != None {
				return true
			}
		}
	}
	return false
}
