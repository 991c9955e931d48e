// Package override holds what an administrator has changed while Caddy runs: zones
// switched to shadow, banned networks, and other limits. All of it ends by itself. Begin
// with [Set], which requests read.
package override

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/perkey"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	bucketkey "github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

// Longest is the longest that an override may last. What should last longer belongs in the
// config.
const Longest = 30 * 24 * time.Hour

const longestNote = 200 // in bytes

// A Kind is what an [Entry] changes.
type Kind string

// The kinds of entries.
const (
	OfBan    Kind = "ban"
	OfLimit  Kind = "limit"
	OfShadow Kind = "shadow"
)

// A Name says what an [Entry] is of.
type Name struct {
	Kind Kind   `json:"kind"`
	Zone string `json:"zone,omitempty"` // empty means all, for shadow alone
	Key  string `json:"key,omitempty"`  // of a bucket, or the network that is banned
}

// Of says for people what it is of.
func (n *Name) Of() string {
	switch {
	case n.Kind == OfBan:
		return n.Key
	case n.Key != "":
		return n.Zone + "/" + n.Key
	}
	return cmp.Or(n.Zone, "all zones and bans")
}

// Path returns a text that no other name has. Names of zones have no slash.
func (n *Name) Path() string { return string(n.Kind) + "/" + n.Zone + "/" + n.Key }

// A Span is how long an override holds, who wanted it, and why.
type Span struct {
	Since time.Time `json:"since"`
	Until time.Time `json:"until"`
	By    string    `json:"by,omitempty"` // as they call themselves; may be anything
	Note  string    `json:"note,omitempty"`
}

func (s *Span) over(now time.Time) bool { return !now.Before(s.Until) }

// Left returns how long the span still lasts.
func (s *Span) Left(now time.Time) time.Duration { return s.Until.Sub(now) }

// An Entry is a ban, a limit or a switch to shadow, or its end, as it is kept and told to others.
// Until of an end is when what it has ended would have.
type Entry struct {
	Name
	Span
	Ended bool `json:"ended,omitempty"`

	// A factor such as x0.5, a capacity and a leak such as "10 1/s", the name of a plan,
	// unlimited or deny.
	Limit string            `json:"limit,omitempty"`
	Plan  leakybucket.Limit `json:"plan,omitzero"` // the limit that the plan had, if it is one
}

// Holds reports whether it changes anything at an instant.
func (e *Entry) Holds(now time.Time) bool { return !e.Ended && !e.over(now) }

// Check returns an error for what nobody can make with this version of Caddy. The end of an
// entry says nothing but its name and until when it would have held.
func (e *Entry) Check() error {
	_, err := e.compile()
	return err
}

// compile returns what requests need of an entry.
func (e *Entry) compile() (*Held, error) {
	h := &Held{Entry: *e}
	switch length := e.Until.Sub(e.Since); {
	case !e.Ended && (length < time.Second || length > Longest): // a bare number in JSON is in nanoseconds
		return nil, fmt.Errorf("invalid duration %v: want 1s to 30 days, such as 2h; what should last belongs in the config", length)
	case len(e.Note) > longestNote || len(e.By) > longestNote:
		return nil, fmt.Errorf("the note has %d bytes and the name %d: want at most %d each", len(e.Note), len(e.By), longestNote)
	case strings.Contains(e.Zone, "/"):
		return nil, fmt.Errorf("invalid zone %q: no name has a slash", e.Zone)
	case e.Kind == OfShadow && e.Key != "":
		return nil, errors.New("shadow is of a whole zone")
	case e.Kind == OfLimit && e.Zone == "":
		return nil, errors.New("a limit needs a zone")
	case e.Kind == OfShadow, e.Kind == OfLimit && e.Ended:
		return h, nil
	case e.Kind == OfBan:
		return h, h.parseNetwork()
	case e.Kind == OfLimit:
		return h, h.parseLimit()
	}
	return nil, fmt.Errorf("unknown kind %q", e.Kind)
}

// A Held is an entry that holds, or is over.
type Held struct {
	Entry
	Network netip.Prefix // of a ban

	Hits atomic.Uint64 // requests and connections that a ban has refused in this process

	// of a limit
	rule   perkey.Rule
	factor float64 // 0 means that limit is the limit
	limit  leakybucket.Limit
}

// shortest is how long the prefix of a banned network must be. A shorter one is more
// likely a slip than an attack.
const shortestV4, shortestV6 = 8, 16

func (h *Held) parseNetwork() (err error) {
	h.Network, err = netip.ParsePrefix(h.Key)
	addr := h.Network.Addr()
	switch {
	case err != nil || h.Network.Masked().String() != h.Key || addr != bucketkey.Unmap(addr):
		return fmt.Errorf("invalid network %q: want one such as 203.0.113.0/24", h.Key)
	case h.Network.Bits() < shortestV4, addr.Is6() && h.Network.Bits() < shortestV6:
		return fmt.Errorf("the network %s is too large: want /%d or longer, for IPv6 /%d", h.Key, shortestV4, shortestV6)
	}
	return nil
}

func (h *Held) parseLimit() (err error) {
	factor, isFactor := strings.CutPrefix(h.Limit, "x")
	switch {
	case h.Plan != (leakybucket.Limit{}):
		h.limit = h.Plan
		return h.Plan.Validate()
	case h.Limit == "unlimited":
		h.rule = perkey.Unlimited
	case h.Limit == "deny":
		h.rule = perkey.Denied
	case isFactor:
		if h.factor, _ = leakybucket.ParseCost(factor); h.factor < 0.001 || h.factor > 1000 { // 0 if it is no number
			return fmt.Errorf("invalid factor %q: want x0.001 to x1000, such as x0.5", h.Limit)
		}
	default:
		if h.limit, err = leakybucket.ParseLimit(h.Limit); err != nil {
			return fmt.Errorf("invalid limit %q: want a factor such as x0.5, a capacity and a leak such as 10 1/s, the name of a plan, unlimited or deny", h.Limit)
		}
	}
	return nil
}

// Limits reports whether a limit is one, and does not let everybody or nobody in.
func (h *Held) Limits() bool { return h.rule == perkey.Limited }

// apply returns the rule and the limit of a key that had these by the config. A factor
// changes limits only, and a change for a whole zone admits no key that the zone denies. The
// capacity never falls below the highest cost of a request, if it was not below before.
func (h *Held) apply(rule perkey.Rule, was leakybucket.Limit, dearest float64) (perkey.Rule, leakybucket.Limit) {
	limited := rule == perkey.Limited
	switch {
	case rule == perkey.Denied && h.Key == "":
		return rule, was
	case !h.Limits():
		return h.rule, was
	case !limited && h.factor > 0:
		return rule, was
	}
	now := h.limit
	if h.factor > 0 {
		now = leakybucket.Limit{Capacity: was.Capacity * h.factor, Leak: was.Leak * h.factor}
	}
	if limited {
		dearest = min(was.Capacity, dearest)
	}
	if now.Capacity = max(now.Capacity, dearest); now.Validate() != nil {
		now = was
	}
	return perkey.Limited, now
}

// A Set is all overrides at one time. It does not change. A nil Set has none.
type Set struct {
	entries map[Name]*Held
	bans    map[netip.Prefix]*Held // those of entries
	lengths []int                  // of the networks of bans, 4 and 6 alike, longest first
	denials map[string]*Held       // of each zone that denies a key, the one that ends last
}

// live returns an entry, or nil if there is none or it is over.
func (s *Set) live(n Name, now time.Time) *Held {
	if h := s.entries[n]; h != nil && !h.over(now) {
		return h
	}
	return nil
}

// Shadow reports whether a zone is switched to shadow.
func (s *Set) Shadow(zone string, now time.Time) bool {
	return s != nil && (s.live(Name{Kind: OfShadow}, now) != nil || s.live(Name{Kind: OfShadow, Zone: zone}, now) != nil)
}

// AllShadow reports whether all zones are, and bans with them.
func (s *Set) AllShadow(now time.Time) bool { return s.Shadow("", now) }

// Banned returns the ban that holds for an address, or nil.
func (s *Set) Banned(addr netip.Addr, now time.Time) *Held {
	return s.BannedAll(netip.PrefixFrom(addr, addr.BitLen()), now)
}

// BannedAll returns the ban that holds for all of a network, or nil.
func (s *Set) BannedAll(of netip.Prefix, now time.Time) *Held {
	if s == nil {
		return nil
	}
	addr := bucketkey.Unmap(of.Addr())
	for _, bits := range s.lengths {
		network, err := addr.Prefix(bits)
		if err != nil || bits > of.Bits() {
			continue // too long for IPv4, or of a part of the network
		}
		if h := s.bans[network]; h != nil && !h.over(now) {
			return h
		}
	}
	return nil
}

// Limit returns the override of a key, or nil. One of the key itself is stronger than
// one of its zone. What may be about any key is denied with one.
func (s *Set) Limit(zone, key string, now time.Time) *Held {
	if s == nil {
		return nil
	}
	if h := s.denials[zone]; h != nil && !h.over(now) && perkey.MayBeAny(key) {
		return h
	}
	return cmp.Or(s.live(Name{OfLimit, zone, key}, now), s.live(Name{Kind: OfLimit, Zone: zone}, now))
}

// Apply returns the rule and limit of a key that has these by the config. dearest is
// the highest constant cost of the zone.
func (s *Set) Apply(zone, key string, rule perkey.Rule, limit leakybucket.Limit, dearest float64, now time.Time) (perkey.Rule, leakybucket.Limit) {
	if h := s.Limit(zone, key, now); h != nil {
		return h.apply(rule, limit, dearest)
	}
	return rule, limit
}

// A Table is the one owner of the overrides. Requests read a Set without a lock. The
// zero Table is empty.
type Table struct {
	set atomic.Pointer[Set] // nil while there is none
	mu  sync.Mutex          // held to change it
}

// Load returns the overrides that hold, which is nil if there are none.
func (t *Table) Load() *Set { return t.set.Load() }

// List returns the entries that hold, the oldest first.
func (t *Table) List(now time.Time) []*Held {
	t.Apply(now)
	s := t.Load()
	if s == nil {
		return nil
	}
	return slices.SortedFunc(maps.Values(s.entries), func(a, b *Held) int {
		return cmp.Or(a.Since.Compare(b.Since), strings.Compare(a.Path(), b.Path()))
	})
}

// Apply lets entries hold, or end what held, and forgets what is over. Entries that nobody
// could have made are ignored.
func (t *Table) Apply(now time.Time, entries ...Entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	next := &Set{entries: make(map[Name]*Held), bans: make(map[netip.Prefix]*Held), denials: make(map[string]*Held)}
	if last := t.Load(); last != nil {
		maps.Copy(next.entries, last.entries)
	}
	for _, e := range entries {
		switch h, err := e.compile(); {
		case err != nil:
		case e.Ended:
			delete(next.entries, e.Name)
		default:
			next.entries[e.Name] = h
		}
	}
	maps.DeleteFunc(next.entries, func(_ Name, h *Held) bool { return h.over(now) })
	if len(next.entries) == 0 {
		t.set.Store(nil)
		return
	}
	for _, h := range next.entries {
		if h.Kind == OfBan {
			next.bans[h.Network] = h
			next.lengths = append(next.lengths, h.Network.Bits())
		}
		named := h.Key != "" && h.Key != "@share" && !strings.HasPrefix(h.Key, "@client_ip/") // which are of who names nobody
		if last := next.denials[h.Zone]; h.rule == perkey.Denied && named && (last == nil || last.Until.Before(h.Until)) {
			next.denials[h.Zone] = h
		}
	}
	slices.SortFunc(next.lengths, func(a, b int) int { return b - a })
	next.lengths = slices.Compact(next.lengths)
	t.set.Store(next)
}

// An Origin says where a change comes from. The name of a user may be anything, so it
// stands apart.
type Origin struct {
	Via string `json:"via"`          // admin API, as with the commands, remote admin, inspector, or the name of another Caddy's host
	By  string `json:"by,omitempty"` // the user of the inspector or the shell, or the name of a certificate
}

// A Change is something that somebody has changed at run time, as the journal has it.
type Change struct {
	At time.Time `json:"at"`
	Origin
	Action string     `json:"action"`          // ban, unban, limit, unlimit, shadow, unshadow, release
	Of     string     `json:"of"`              // a network, a zone, a zone and a key, or all zones and bans
	Limit  string     `json:"limit,omitempty"` // as it was given
	Until  *time.Time `json:"until,omitempty"`
	Note   string     `json:"note,omitempty"`
}
