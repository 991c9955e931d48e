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

// A Span is how long an override holds, who wanted it, and why.
type Span struct {
	Since time.Time `json:"since"`
	Until time.Time `json:"until"`
	By    string    `json:"by,omitempty"` // as they call themselves; may be anything
	Note  string    `json:"note,omitempty"`
}

// NewSpan checks how long an override is to hold. A length of zero means the longest.
func NewSpan(now time.Time, length time.Duration, by, note string) (s Span, err error) {
	switch {
	case length < 0 || length > Longest:
		return s, fmt.Errorf("invalid duration %v: want at most 30 days; what should last belongs in the config", length)
	case len(note) > longestNote || len(by) > longestNote:
		return s, fmt.Errorf("the note has %d bytes and the name %d: want at most %d each", len(note), len(by), longestNote)
	}
	return Span{Since: now, Until: now.Add(cmp.Or(length, Longest)), By: by, Note: note}, nil
}

func (s *Span) over(now time.Time) bool { return !now.Before(s.Until) }

// Left returns how long the span still lasts.
func (s *Span) Left(now time.Time) time.Duration { return s.Until.Sub(now) }

// A Ban refuses the clients of a network.
type Ban struct {
	Network netip.Prefix
	Span

	hits *atomic.Uint64
}

// Hit counts a request or a connection that the ban has refused.
func (b *Ban) Hit() { b.hits.Add(1) }

// A Limit changes the limit of a zone, or of one key of it.
type Limit struct {
	Key  string // the name of the bucket; empty means all keys
	Text string // as it was given
	Span

	rule   perkey.Rule
	factor float64 // 0 means that limit is the limit
	limit  leakybucket.Limit
	plan   bool // it is that of a plan
}

// ParseLimit reads the text of a limit: a factor such as x0.5, a capacity and a leak
// such as "10 1/s", the name of a plan, unlimited or deny. A plan has the limit that it
// has now.
func ParseLimit(text string, plans map[string]leakybucket.Limit) (l Limit, err error) {
	l.Text = strings.Join(strings.Fields(text), " ")
	factor, isFactor := strings.CutPrefix(l.Text, "x")
	plan, isPlan := plans[l.Text]
	switch {
	case isPlan:
		l.limit, l.plan = plan, true
	case l.Text == "unlimited":
		l.rule = perkey.Unlimited
	case l.Text == "deny":
		l.rule = perkey.Denied
	case isFactor:
		var plain bool
		if l.factor, plain = leakybucket.ParseCost(factor); !plain || !(l.factor >= 0.001 && l.factor <= 1000) {
			return l, fmt.Errorf("invalid factor %q: want x0.001 to x1000, such as x0.5", text)
		}
	default:
		if l.limit, err = leakybucket.ParseLimit(l.Text); err != nil {
			return l, fmt.Errorf("invalid limit %q: want a factor such as x0.5, a capacity and a leak such as 10 1/s, the name of a plan, unlimited or deny", text)
		}
	}
	return l, nil
}

// Limits reports whether the override gives a limit, which zones without buckets have
// not.
func (l *Limit) Limits() bool { return l.rule == perkey.Limited }

// apply returns the rule and the limit of a key that had these by the config. A factor
// changes limits only, and what holds for a whole zone lets nobody in whom it denies. The
// capacity never falls below what the dearest request costs, if it was not below before.
func (l *Limit) apply(rule perkey.Rule, was leakybucket.Limit, dearest float64) (perkey.Rule, leakybucket.Limit) {
	limited := rule == perkey.Limited
	switch {
	case rule == perkey.Denied && l.Key == "":
		return rule, was
	case !l.Limits():
		return l.rule, was
	case !limited && l.factor > 0, limited && was.Capacity == 0:
		return rule, was
	}
	now := l.limit
	if l.factor > 0 {
		now = leakybucket.Limit{Capacity: was.Capacity * l.factor, Leak: was.Leak * l.factor}
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
	entries map[Name]*compiled
	bans    map[netip.Prefix]*compiled // those of entries
	lengths []int                      // of the networks of bans, 4 and 6 alike, longest first
}

// A compiled entry holds, or is over.
type compiled struct {
	Entry
	ban   *Ban   // if it is one
	limit *Limit // likewise
}

// live returns an entry, or nil if there is none or it is over.
func (s *Set) live(n Name, now time.Time) *compiled {
	if c := s.entries[n]; c != nil && !c.over(now) {
		return c
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
func (s *Set) Banned(addr netip.Addr, now time.Time) *Ban {
	if s == nil || len(s.lengths) == 0 || !addr.IsValid() {
		return nil
	}
	addr = bucketkey.Unmap(addr)
	for _, bits := range s.lengths {
		network, err := addr.Prefix(bits)
		if err != nil {
			continue // too long for IPv4
		}
		if c := s.bans[network]; c != nil && !c.over(now) {
			return c.ban
		}
	}
	return nil
}

// Limit returns the override of a key, or nil. One of the key itself is stronger than
// one of its zone.
func (s *Set) Limit(zone, key string, now time.Time) *Limit {
	if s == nil {
		return nil
	}
	c := s.live(Name{OfLimit, zone, key}, now)
	if c == nil {
		c = s.live(Name{Kind: OfLimit, Zone: zone}, now)
	}
	if c == nil {
		return nil
	}
	return c.limit
}

// Apply returns the rule and limit of a key that has these by the config. dearest is
// the highest constant cost of the zone.
func (s *Set) Apply(zone, key string, rule perkey.Rule, limit leakybucket.Limit, dearest float64, now time.Time) (perkey.Rule, leakybucket.Limit) {
	if l := s.Limit(zone, key, now); l != nil {
		return l.apply(rule, limit, dearest)
	}
	return rule, limit
}

// A Held is an entry that holds, for people and programs to read.
type Held struct {
	Entry
	Hits uint64 `json:"hits,omitempty"` // requests and connections that a ban has refused in this process
}

// A Table is the one owner of the overrides. Requests read a Set without a lock. The
// zero Table is empty.
type Table struct {
	set atomic.Pointer[Set] // nil while there is none
	mu  sync.Mutex          // held to change it
}

// Load returns the overrides that hold, which is nil if there are none. A nil Table
// has none.
func (t *Table) Load() *Set {
	if t == nil {
		return nil
	}
	return t.set.Load()
}

// List returns the entries that hold, the oldest first.
func (t *Table) List(now time.Time) (all []Held) {
	t.Apply(now)
	s := t.Load()
	if s == nil {
		return nil
	}
	for _, c := range s.entries {
		held := Held{Entry: c.Entry}
		if c.ban != nil {
			held.Hits = c.ban.hits.Load()
		}
		all = append(all, held)
	}
	slices.SortFunc(all, func(a, b Held) int {
		return cmp.Or(a.Since.Compare(b.Since), strings.Compare(fmt.Sprint(a.Name), fmt.Sprint(b.Name)))
	})
	return all
}

// Apply lets entries hold, or end what held, and forgets what is over. Entries that nobody
// could have made, by another version of Caddy, are ignored.
func (t *Table) Apply(now time.Time, entries ...Entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	next := &Set{entries: make(map[Name]*compiled), bans: make(map[netip.Prefix]*compiled)}
	if last := t.Load(); last != nil {
		maps.Copy(next.entries, last.entries)
	}
	maps.DeleteFunc(next.entries, func(_ Name, c *compiled) bool { return c.over(now) })
	for _, e := range entries {
		next.apply(e)
	}
	if len(next.entries) == 0 {
		t.set.Store(nil)
		return
	}
	for _, c := range next.entries {
		if c.ban != nil {
			next.bans[c.ban.Network] = c
			next.lengths = append(next.lengths, c.ban.Network.Bits())
		}
	}
	slices.Sort(next.lengths)
	slices.Reverse(next.lengths)
	next.lengths = slices.Compact(next.lengths)
	t.set.Store(next)
}

func (s *Set) apply(e Entry) {
	if e.Ended {
		delete(s.entries, e.Name)
		return
	}
	c := &compiled{Entry: e}
	switch e.Kind {
	case OfShadow:
	case OfBan:
		network, err := netip.ParsePrefix(e.Key)
		if err != nil {
			return
		}
		c.ban = &Ban{network, e.Span, new(atomic.Uint64)}
		if last := s.entries[e.Name]; last != nil && last.Since.Equal(e.Since) {
			c.ban.hits = last.ban.hits
		}
	case OfLimit:
		l, err := e.limit()
		if err != nil {
			return
		}
		l.Key, l.Span = e.Key, e.Span
		c.limit, c.Limit = &l, l.Text
	default:
		return
	}
	s.entries[e.Name] = c
}

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

// An Entry is a [Ban], a [Limit] or a switch to shadow, or its end, as it is kept and told to others.
// Until of an end is when what it has ended would have.
type Entry struct {
	Name
	Span
	Ended bool   `json:"ended,omitempty"`
	Limit string `json:"limit,omitempty"` // as it was given

	Plan leakybucket.Limit `json:"plan,omitzero"` // the limit of the plan, if that was given
}

// Of says for people what it is of.
func (n *Name) Of() string {
	switch {
	case n.Kind == OfBan:
		return n.Key
	case n.Key != "":
		return n.Zone + "/" + n.Key
	}
	return cmp.Or(n.Zone, "everything")
}

// Path returns a text that no other name has. Names of zones have no slash.
func (n *Name) Path() string { return string(n.Kind) + "/" + n.Zone + "/" + n.Key }

// Check returns an error for what nobody can have made with this version of Caddy. The end of
// an entry says nothing but its name and until when it would have held.
func (e *Entry) Check() error {
	if !e.Ended && (e.Until.Before(e.Since) || e.Until.Sub(e.Since) > Longest) {
		return fmt.Errorf("it holds from %v until %v", e.Since, e.Until)
	}
	if strings.Contains(e.Zone, "/") || len(e.Note) > longestNote || len(e.By) > longestNote {
		return errors.New("its zone, note or name is none that Caddy has")
	}
	switch e.Kind {
	case OfShadow:
		if e.Key != "" {
			return errors.New("shadow is of a whole zone")
		}
	case OfBan:
		network, err := netip.ParsePrefix(e.Key)
		if err == nil && network.String() != e.Key {
			return fmt.Errorf("invalid network %q: want %v", e.Key, network)
		}
		if err == nil {
			_, err = NewBan(network, e.Span)
		}
		return err
	case OfLimit:
		if e.Zone == "" {
			return errors.New("a limit is of a zone")
		}
		if !e.Ended {
			_, err := e.limit()
			return err
		}
	default:
		return fmt.Errorf("unknown kind %q", e.Kind)
	}
	return nil
}

// limit returns the limit of an entry of that kind.
func (e *Entry) limit() (Limit, error) {
	var plans map[string]leakybucket.Limit
	if e.Plan != (leakybucket.Limit{}) {
		if err := e.Plan.Validate(); err != nil {
			return Limit{}, err
		}
		plans = map[string]leakybucket.Limit{e.Limit: e.Plan}
	}
	return ParseLimit(e.Limit, plans)
}

// Holds reports whether it changes anything at an instant.
func (e *Entry) Holds(now time.Time) bool { return !e.Ended && !e.over(now) }

// shortest is how long the prefix of a banned network must be. A shorter one is more
// likely a slip than an attack.
const shortestV4, shortestV6 = 8, 16

// NewBan returns the ban of a network.
func NewBan(network netip.Prefix, held Span) (e Entry, err error) {
	switch {
	case !network.IsValid() || network != network.Masked() || network.Addr() != bucketkey.Unmap(network.Addr()):
		return e, fmt.Errorf("invalid network %v: want one such as 203.0.113.0/24", network)
	case network.Addr().Is4() && network.Bits() < shortestV4, network.Addr().Is6() && network.Bits() < shortestV6:
		return e, fmt.Errorf("the network %v is too large: want /%d or longer, for IPv6 /%d", network, shortestV4, shortestV6)
	}
	return Entry{Name: Name{Kind: OfBan, Key: network.String()}, Span: held}, nil
}

// NewShadow returns the switch of a zone, or with an empty name of all zones and bans.
func NewShadow(zone string, held Span) Entry {
	return Entry{Name: Name{Kind: OfShadow, Zone: zone}, Span: held}
}

// NewLimit returns the limit of a zone, or of one key. l must come from [ParseLimit].
func NewLimit(zone, key string, l Limit, held Span) Entry {
	e := Entry{Name: Name{Kind: OfLimit, Zone: zone, Key: key}, Span: held, Limit: l.Text}
	if l.plan {
		e.Plan = l.limit
	}
	return e
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
	Of     string     `json:"of"`              // a network, a zone, a zone and a key, or everything
	Limit  string     `json:"limit,omitempty"` // as it was given
	Until  *time.Time `json:"until,omitempty"`
	Note   string     `json:"note,omitempty"`
}
