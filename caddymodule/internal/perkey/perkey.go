// Package perkey says which limit holds for a key: the lines of a zone that give some keys
// another one. Begin with Table.
package perkey

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/option"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

// A Rule says how requests of a key are treated.
type Rule int

// The rules.
const (
	Limited   Rule = iota // by a limit
	Unlimited             // never counted, never refused
	Denied                // always refused
)

// An Override gives some keys another limit than the zone's own.
type Override struct {
	// The leading parts of the keys, in plain text, or as sha256: and the SHA-256 of
	// the text in hexadecimal. Required. Parts left off the end match anything. A
	// client's address may be a network in CIDR notation.
	Parts []string `json:"parts,omitempty"`

	// The name of a plan, a capacity and a leak such as `10 1/s`, `unlimited` or
	// `deny`. Required.
	Limit string `json:"limit,omitempty"`

	// The name of one bucket for all keys of all overrides with this name. They need
	// the same limit. Default: each key has its own bucket.
	As string `json:"as,omitempty"`
}

// A Part is one part of a key to be looked up: a client's network, or a text.
type Part struct {
	Digest  key.Digest   // of the text
	Network netip.Prefix // valid if the part is an address
}

// IsDigest reports whether a part of an override is given by its digest.
func IsDigest(part string) bool { return strings.HasPrefix(part, "sha256:") }

// TableConfig has the limits and overrides of a [Table].
type TableConfig struct {
	// Own is the limit of all keys without an override.
	Own leakybucket.Limit

	Plans     map[string]leakybucket.Limit // limits by name, for overrides
	Overrides []Override

	// Addresses says for each part of the key whether it is a client's address.
	// IPv4Bits and IPv6Bits are the prefix lengths of [key.ClientPrefix].
	Addresses          []bool
	IPv4Bits, IPv6Bits int
}

// A Table says which rule and limit hold for a key. It is immutable, and so safe
// for concurrent use.
type Table struct {
	root   node
	shared map[string]*Entry // by the names of buckets
	limits []leakybucket.Limit
	denies bool
}

// A node holds the entry for one run of leading parts, and the nodes behind it.
type node struct {
	entry    *Entry
	texts    map[key.Digest]*node
	networks map[netip.Prefix]*node
	lengths  []int // of the prefixes in networks, longest first, each once
}

// An Entry is what holds for a key.
type Entry struct {
	Rule  Rule
	Limit leakybucket.Limit

	// Bucket is the name of the bucket that the key shares with others. If empty, the
	// key has its own.
	Bucket string

	// Override is the index of the override in [TableConfig], or -1 if none names the
	// key.
	Override int
}

// Listed reports whether an override names the key.
func (e *Entry) Listed() bool { return e.Override >= 0 }

// About says which override an error is about.
func (o *Override) About(index int, err error) error {
	return option.About("override", index, fmt.Errorf("override %s: %w", strings.Join(o.Parts, " "), err))
}

// NewTable returns the table. Its error is about one of the overrides.
func NewTable(config TableConfig) (*Table, error) {
	table := &Table{
		root:   node{entry: &Entry{Limit: config.Own, Override: -1}},
		shared: make(map[string]*Entry),
		limits: []leakybucket.Limit{config.Own},
	}
	for i, o := range config.Overrides {
		if err := table.add(config, i, o); err != nil {
			return nil, o.About(i, err)
		}
	}
	return table, nil
}

// add adds the override of an index.
func (t *Table) add(config TableConfig, index int, o Override) (err error) {
	if len(o.Parts) == 0 {
		return errors.New("no key given: want <part>... <limit>")
	}
	if len(o.Parts) > len(config.Addresses) {
		return fmt.Errorf("%d parts of a key given before the limit %q, and the key has %d: want <part>... <plan>|<capacity> <leak>|unlimited|deny, such as 100 10/s at the end",
			len(o.Parts), o.Limit, len(config.Addresses))
	}
	at := &t.root
	for i, part := range o.Parts {
		if config.Addresses[i] {
			network, err := parseNetwork(part, config.IPv4Bits, config.IPv6Bits)
			if err != nil {
				return err
			}
			at = at.network(network)
			continue
		}
		if written, isName := strings.CutPrefix(part, "@"); isName && IsDigest(written) {
			return fmt.Errorf("invalid digest %q: did you mean %s?", part, written) // as logs have it
		}
		digest := key.DigestOf(part)
		if IsDigest(part) {
			var valid bool
			if digest, valid = key.ParseDigest("@" + part); !valid {
				return fmt.Errorf("invalid digest %q: want sha256: and 64 hexadecimal digits, as of printf %%s <value> | sha256sum", part)
			}
		}
		at = child(&at.texts, digest)
	}
	if at.entry != nil {
		return errors.New("given twice")
	}
	entry, err := config.parseEntry(o.Limit)
	if err != nil {
		return err
	}
	entry.Override = index
	at.entry = entry
	t.denies = t.denies || entry.Rule == Denied
	if entry.Rule == Limited && !slices.Contains(t.limits, entry.Limit) {
		t.limits = append(t.limits, entry.Limit)
	}
	if o.As != "" {
		return t.share(o, entry)
	}
	return nil
}

// share gives an entry the bucket of a name.
func (t *Table) share(o Override, entry *Entry) error {
	if err := option.CheckName("bucket", o.As); err != nil {
		return err
	}
	if entry.Rule != Limited {
		return fmt.Errorf("as %s has no meaning after %s: want a plan, or <capacity> <leak>, which the keys of that name share", o.As, o.Limit)
	}
	entry.Bucket = SharedPrefix + o.As
	other := t.shared[entry.Bucket]
	if other == nil {
		t.shared[entry.Bucket] = entry
	} else if other.Limit != entry.Limit {
		return fmt.Errorf("as %s has another limit elsewhere: keys that share a bucket need the same limit", o.As)
	}
	return nil
}

// The buckets of requests that may be about any key. If one is denied, so are they.
const (
	Unclear = "@unclear" // of forms that do not say for sure whom they are about
	Odd     = "@odd"     // of names that nobody types
)

// MayBeAny reports whether a bucket is one of these.
func MayBeAny(bucket string) bool { return bucket == Unclear || bucket == Odd }

// SharedPrefix begins the names of buckets that several keys share. No part of a key
// can begin so.
const SharedPrefix = "@as/"

func (config TableConfig) parseEntry(text string) (*Entry, error) {
	switch text {
	case "unlimited":
		return &Entry{Rule: Unlimited}, nil
	case "deny":
		return &Entry{Rule: Denied}, nil
	}
	if plan, known := config.Plans[text]; known {
		return &Entry{Limit: plan}, nil
	}
	if !strings.ContainsAny(text, " ,") {
		return nil, fmt.Errorf("unknown plan %q: want one of the plans, <capacity> <leak>, unlimited or deny", text)
	}
	limit, err := leakybucket.ParseLimit(text)
	return &Entry{Limit: limit}, err
}

// parseNetwork reads an address or a network. It may be no narrower than the
// prefix lengths, because keys have lost the bits beyond them.
func parseNetwork(text string, ipv4Bits, ipv6Bits int) (netip.Prefix, error) {
	network, err := netip.ParsePrefix(text)
	if err != nil {
		addr, err := netip.ParseAddr(text)
		if err != nil || addr.Zone() != "" {
			return network, fmt.Errorf("invalid address %q: want an IP address or a network such as 203.0.113.0/24", text)
		}
		addr = key.Unmap(addr)
		network = netip.PrefixFrom(addr, addr.BitLen())
	}
	if network.Addr() != key.Unmap(network.Addr()) {
		return network, fmt.Errorf("invalid network %q: write IPv4 networks as IPv4", text)
	}
	if network.Masked() != network {
		return network, fmt.Errorf("invalid network %q: did you mean %v?", text, network.Masked())
	}
	kept := ipv6Bits
	if network.Addr().Is4() {
		kept = ipv4Bits
	}
	if network.Bits() > kept {
		return network, fmt.Errorf("network %q is narrower than the /%d that clients are told apart by: did you mean %v?",
			text, kept, netip.PrefixFrom(network.Addr(), kept).Masked())
	}
	return network, nil
}

// child returns the node of a key in a map of nodes, which it makes.
func child[K comparable](of *map[K]*node, k K) *node {
	if *of == nil {
		*of = make(map[K]*node)
	}
	if (*of)[k] == nil {
		(*of)[k] = new(node)
	}
	return (*of)[k]
}

func (n *node) network(network netip.Prefix) *node {
	if !slices.Contains(n.lengths, network.Bits()) {
		n.lengths = append(n.lengths, network.Bits())
		slices.SortFunc(n.lengths, func(a, b int) int { return b - a })
	}
	return child(&n.networks, network)
}

// Empty reports whether there are no overrides, so that no key needs to be looked
// up.
func (t *Table) Empty() bool { return t.root.texts == nil && t.root.networks == nil }

// Lookup returns what holds for a key. The override with the most leading parts
// decides. Among several of these an exact address goes before a network, and a narrow
// network before a wide one.
func (t *Table) Lookup(key []Part) Entry {
	found, _ := t.root.find(key)
	return *found
}

// Named returns what holds for a bucket that several keys share, or for one that no override
// names.
func (t *Table) Named(bucket string) Entry {
	if shared := t.shared[bucket]; shared != nil {
		return *shared
	}
	e := *t.root.entry
	if t.denies && MayBeAny(bucket) {
		e.Rule = Denied
	}
	return e
}

// find returns the entry that matches most leading parts, and their number.
func (n *node) find(parts []Part) (best *Entry, depth int) {
	best = n.entry
	if len(parts) == 0 {
		return best, 0
	}
	consider := func(next *node) {
		if next == nil {
			return
		}
		if found, d := next.find(parts[1:]); found != nil && d+1 > depth {
			best, depth = found, d+1
		}
	}
	if part := parts[0]; part.Network.IsValid() {
		for _, bits := range n.lengths {
			if wide, err := part.Network.Addr().Prefix(bits); err == nil && bits <= part.Network.Bits() {
				consider(n.networks[wide])
			}
		}
	} else {
		consider(n.texts[part.Digest])
	}
	return best, depth
}

// Limits returns every limit that Lookup may return, each once. The one without an
// override comes first.
func (t *Table) Limits() []leakybucket.Limit { return t.limits }
