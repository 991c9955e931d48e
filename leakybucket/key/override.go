package key

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// A Rule says how requests of a key are treated.
type Rule int

// The rules.
const (
	Limited   Rule = iota // by a limit
	Unlimited             // never counted, never refused
	Deny                  // always refused
)

// An Override gives some keys another limit than the zone's own.
type Override struct {
	// The leading parts of the keys, in plain text. Parts left off the end match
	// anything. For a client's address, a network in CIDR notation may be given.
	Parts []string `json:"parts,omitempty"`

	// The name of a plan, a capacity and a leak such as "10 1/s", "unlimited" or
	// "deny".
	Limit string `json:"limit,omitempty"`
}

// A Part is one part of a key to be looked up: a client's network, or plain text.
type Part struct {
	Text    string
	Network netip.Prefix // valid if the part is an address
}

// TableConfig has the limits and overrides of a [Table].
type TableConfig struct {
	Own       leakybucket.Limit            // for all keys without an override
	Plans     map[string]leakybucket.Limit // limits by name, for overrides
	Overrides []Override

	// Addresses says for each part of the key whether it is a client's address.
	// IPv4Bits and IPv6Bits are the prefix lengths of [ClientPrefix].
	Addresses          []bool
	IPv4Bits, IPv6Bits int
}

// A Table says which rule and limit hold for a key. It is immutable, and so safe
// for concurrent use.
type Table struct {
	root node
}

// A node holds the rule for one run of leading parts, and the nodes behind it.
type node struct {
	entry    *entry
	texts    map[string]*node
	networks map[netip.Prefix]*node
	lengths  []int // of the prefixes in networks, longest first, each once
}

type entry struct {
	rule  Rule
	limit leakybucket.Limit
}

// NewTable returns the table, or says which override is wrong and why.
func NewTable(config TableConfig) (*Table, error) {
	table := &Table{root: node{entry: &entry{Limited, config.Own}}}
	for _, o := range config.Overrides {
		if err := table.add(config, o); err != nil {
			return nil, fmt.Errorf("override %s: %w", strings.Join(o.Parts, " "), err)
		}
	}
	return table, nil
}

func (t *Table) add(config TableConfig, o Override) error {
	if len(o.Parts) == 0 {
		return errors.New("no key given: want <part>... <limit>")
	}
	if len(o.Parts) > len(config.Addresses) {
		return fmt.Errorf("%d parts of a key given before the limit %q, and the key has %d: want <part>... <plan>|<capacity> <leak>|unlimited|deny, such as 100 10/s at the end",
			len(o.Parts), o.Limit, len(config.Addresses))
	}
	at := &t.root
	for i, part := range o.Parts {
		if !config.Addresses[i] {
			at = at.text(part)
			continue
		}
		network, err := parseNetwork(part, config.IPv4Bits, config.IPv6Bits)
		if err != nil {
			return err
		}
		at = at.network(network)
	}
	if at.entry != nil {
		return errors.New("given twice")
	}
	rule, err := config.parseEntry(o.Limit)
	at.entry = rule
	return err
}

func (config TableConfig) parseEntry(text string) (*entry, error) {
	switch text {
	case "unlimited":
		return &entry{rule: Unlimited}, nil
	case "deny":
		return &entry{rule: Deny}, nil
	}
	if plan, known := config.Plans[text]; known {
		return &entry{Limited, plan}, nil
	}
	if !strings.ContainsAny(text, " ,") {
		return nil, fmt.Errorf("unknown plan %q: want one of the plans, <capacity> <leak>, unlimited or deny", text)
	}
	limit, err := leakybucket.ParseLimit(text)
	return &entry{Limited, limit}, err
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
		addr = addr.Unmap()
		network = netip.PrefixFrom(addr, addr.BitLen())
	}
	if network.Addr().Is4In6() {
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

func (n *node) text(part string) *node {
	if n.texts == nil {
		n.texts = make(map[string]*node)
	}
	if n.texts[part] == nil {
		n.texts[part] = new(node)
	}
	return n.texts[part]
}

func (n *node) network(network netip.Prefix) *node {
	if n.networks == nil {
		n.networks = make(map[netip.Prefix]*node)
	}
	if n.networks[network] == nil {
		n.networks[network] = new(node)
		if !slices.Contains(n.lengths, network.Bits()) {
			n.lengths = append(n.lengths, network.Bits())
			slices.Sort(n.lengths)
			slices.Reverse(n.lengths)
		}
	}
	return n.networks[network]
}

// Plain reports whether there are no overrides, so that no key needs to be looked
// up.
func (t *Table) Plain() bool { return t.root.texts == nil && t.root.networks == nil }

// Lookup returns the rule and limit of a key, and whether an override names it.
// The override with the most leading parts decides. Among several of these an
// exact address goes before a network, and a narrow network before a wide one.
func (t *Table) Lookup(key []Part) (rule Rule, limit leakybucket.Limit, listed bool) {
	found, depth := t.root.find(key)
	return found.rule, found.limit, depth > 0
}

// find returns the entry that matches most leading parts of key, and their number.
func (n *node) find(key []Part) (best *entry, depth int) {
	best = n.entry
	if len(key) == 0 {
		return best, 0
	}
	consider := func(next *node) {
		if next == nil {
			return
		}
		if found, d := next.find(key[1:]); found != nil && d+1 > depth {
			best, depth = found, d+1
		}
	}
	if part := key[0]; part.Network.IsValid() {
		for _, bits := range n.lengths {
			if wide, err := part.Network.Addr().Prefix(bits); err == nil && bits <= part.Network.Bits() {
				consider(n.networks[wide])
			}
		}
	} else {
		consider(n.texts[part.Text])
	}
	return best, depth
}

// Limits returns every limit that Lookup may return, the one without an override
// first.
func (t *Table) Limits() []leakybucket.Limit { return t.root.limits(nil) }

func (n *node) limits(all []leakybucket.Limit) []leakybucket.Limit {
	if n.entry != nil && n.entry.rule == Limited {
		all = append(all, n.entry.limit)
	}
	for _, next := range n.texts {
		all = next.limits(all)
	}
	for _, next := range n.networks {
		all = next.limits(all)
	}
	return all
}
