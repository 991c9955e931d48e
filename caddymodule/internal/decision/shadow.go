package decision

import (
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
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
	if !r.chooses(key) {
		return ShadowOwn
	}
	return r.Group(s.Overrides)
}

// Group returns the group of the keys that the zone does not leave to shadow by enforce,
// or 0 if it is enforced for them. Without overrides, the config alone counts.
func (r *Rule) Group(overrides *override.Set) leakybucket.Shadow {
	if r.Shadow != 0 || overrides == nil {
		return r.Shadow
	}
	now := time.Now()
	switch {
	case !overrides.Shadow(r.Name, now):
		return 0
	case overrides.AllShadow(now):
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
