package override

import (
	"cmp"
	"fmt"
	"net/netip"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

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

// An Entry is a [Ban], a [Limit] or a [Shadow], or its end, as it is kept and told to others.
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

// Holds reports whether it changes anything at an instant.
func (e *Entry) Holds(now time.Time) bool { return !e.Ended && !e.over(now) }

// shortest is how long the prefix of a banned network must be. A shorter one is more
// likely a slip than an attack.
const shortestV4, shortestV6 = 8, 16

// NewBan returns the ban of a network.
func NewBan(network netip.Prefix, held Span) (e Entry, err error) {
	switch {
	case !network.IsValid() || network != network.Masked() || network.Addr().Is4In6():
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
