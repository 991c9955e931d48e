package decision

import (
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	bucketkey "github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

// Owned says which buckets of a zone belong to a client's address, or to another value
// that an administrator gives.
type Owned struct {
	// Names are the buckets that can be named without a search.
	Names []string

	// Search says that others must be looked for, among those with the Prefix.
	Search bool
	Prefix string

	wanted map[int]string // texts of segments, of which one must be there
}

// Owned returns the buckets of a value: an address, an account's name, a plain API key,
// or the name of a bucket itself.
func (r *Rule) Owned(value string) Owned {
	o := Owned{Names: []string{value}, wanted: make(map[int]string)}
	addr, err := netip.ParseAddr(value)
	client := netip.Prefix{}
	if err == nil {
		client = bucketkey.ClientPrefix(addr, r.Key.IPv4Bits, r.Key.IPv6Bits)
		if !r.Key.HasAddress() {
			o.Names = append(o.Names, "@client_ip/"+client.Addr().String())
		}
	}
	segments := 0
	for i := range r.Key.Parts {
		p := &r.Key.Parts[i]
		switch {
		case p.ClientIP && client.IsValid():
			o.wanted[segments] = client.Addr().String()
		case p.ClientIP, len(p.Template) > 1:
		default:
			o.wanted[segments] = p.segment(value)
		}
		segments += max(1, len(p.Template))
	}
	first, found := o.wanted[0]
	if segments == 1 && found && !slices.Contains(o.Names, first) {
		o.Names = append(o.Names, first)
	}
	o.Search = segments > 1 && len(o.wanted) > 0 || r.Trust != nil
	if len(o.wanted) == 1 && found {
		o.Prefix = first + "/"
	}
	return o
}

// Has reports whether a bucket that was searched for belongs to the value. The places
// that an account has for devices do not.
func (o *Owned) Has(name string) bool {
	if strings.Contains(name, "/@devices/") {
		return false
	}
	segments := strings.Split(name, "/")
	for i, text := range o.wanted {
		if i < len(segments) && segments[i] == text {
			return true
		}
	}
	return false
}

// segment returns a value as it stands in names.
func (p *Part) segment(value string) string {
	if p.Fold != nil {
		if folded, sure := p.Fold(value); sure {
			value = folded
		}
	}
	if p.Digest {
		return string(bucketkey.AppendDigest(nil, value))
	}
	return string(bucketkey.AppendPart(nil, value))
}

// NameOf returns the name of the bucket of raw values, one for each part of the key. It
// returns false if they are too few or too many, or a part can have no such value.
func (r *Rule) NameOf(values []string) (name string, ok bool) {
	if len(values) != len(r.Key.Parts) {
		return "", false
	}
	segments := make([]string, len(values))
	for i, value := range values {
		p := &r.Key.Parts[i]
		if len(p.Template) > 1 || value == "" {
			return "", false
		}
		if !p.ClientIP {
			segments[i] = p.segment(value)
			continue
		}
		addr, err := netip.ParseAddr(value)
		if err != nil {
			return "", false
		}
		segments[i] = bucketkey.ClientPrefix(addr, r.Key.IPv4Bits, r.Key.IPv6Bits).Addr().String()
	}
	return strings.Join(segments, "/"), true
}

// Limited returns the rule and limit that the config has for a bucket, and whether an
// override of the config gives them. Overrides of values that are kept as digests are
// not found.
func (r *Rule) Limited(name string) (rule bucketkey.Rule, limit leakybucket.Limit, listed bool) {
	segments := strings.Split(name, "/")
	var parts []bucketkey.Part
	for i := range r.Key.Parts {
		p := &r.Key.Parts[i]
		n := max(1, len(p.Template))
		if len(segments) < n || name[0] == '@' {
			return bucketkey.Limited, r.Limit, false
		}
		text := ""
		for _, segment := range segments[:n] {
			plain, err := url.PathUnescape(segment)
			if err != nil {
				plain = segment
			}
			text += plain
		}
		part := bucketkey.Part{Text: text}
		if addr, err := netip.ParseAddr(text); err == nil && p.ClientIP {
			part = bucketkey.Part{Network: bucketkey.ClientPrefix(addr, r.Key.IPv4Bits, r.Key.IPv6Bits)}
		}
		parts, segments = append(parts, part), segments[n:]
	}
	return r.Key.Table.Lookup(parts)
}

// Peek returns a charge that shows the state of a bucket, and pours and begins nothing:
// its cost fits no bucket.
func (r *Rule) Peek(name string, limit leakybucket.Limit, shadow bool) leakybucket.Charge {
	c := r.charge(&key{name: name, limit: limit}, shadow, -1)
	c.Probe = true
	return c
}

// Outcomes returns the outcomes so far. They are valid until [Plan.Release].
func (p *Plan) Outcomes() []Outcome { return p.outcomes }
