package rule

import (
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// Mode is for whom a zone is enforced. For all others it is a dry run.
type Mode struct {
	Shadow  leakybucket.Shadow // the word that has put the zone there; 0 if the config has none
	Enforce int                // percent of the keys; the others are in shadow

	// ServerTiming marks responses to requests that the zone would have refused.
	ServerTiming bool
}

// The groups of shadow: which word has put a zone there. Zones of one group are judged
// together, as after the edit that takes the word away. Groups from ShadowOwn on are of
// one zone, which has a word of its own. A group has a meaning for one request only.
const (
	ShadowGlobal leakybucket.Shadow = iota + 1 // shadow in the global options
	ShadowSwitch                               // the switch at run time for all zones
	ShadowBeside                               // shadow beside the zones of a handler
	ShadowOwn                                  // shadow or enforce in the zone, or its switch at run time
)

// GroupOf returns the group of a request with this key, or 0 if it is enforced.
func (r *Rule) GroupOf(s *Subject, key string) leakybucket.Shadow {
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

// chooses reports whether a key is among those that enforce chooses. The hash has no
// seed, so all nodes and all zones choose the same keys.
func (m *Mode) chooses(key string) bool {
	return m.Enforce == 100 || xxhash.Sum64String(key)%100 < uint64(m.Enforce)
}
