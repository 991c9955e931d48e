package limit

import (
	"cmp"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/perkey"
	bucketkey "github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

// Owned says which buckets of a zone belong to a client's address, or to another value
// that an administrator gives. All belong to the zero Owned.
type Owned struct {
	// Names are the buckets that can be named without a search.
	Names []string

	// Search says that others must be looked for, among those with the Prefix.
	Search bool
	Prefix string

	wanted  map[int]string // texts of segments, of which one must be there
	network netip.Prefix   // or one must be an address of it
}

// Cut is the end of a bucket's name that stands for those that begin as it does. Tables cut
// long ones.
const (
	Cut        = "…"
	leastStart = 16 // bytes before it: nobody means nearly all buckets
)

// Owned returns the buckets of a value: an address, a network, an account's name, a plain
// API key, the name after `as` of an override, or that of a bucket itself, perhaps [Cut].
func (z *Zone) Owned(value string) Owned {
	if start, cut := strings.CutSuffix(value, Cut); cut && len(start) >= leastStart {
		return Owned{Search: true, Prefix: start}
	}
	if network, err := netip.ParsePrefix(value); err == nil {
		if network.Bits() < z.Key.network(network.Addr()).Bits() {
			return Owned{Search: z.Key.HasAddress() || z.fallsBack() || z.Key.Missing == ByClientIP, network: network.Masked()}
		}
		value = network.Addr().String() // which the key masks at least as much
	}
	o := Owned{Names: []string{value}, wanted: make(map[int]string)}
	addr, err := netip.ParseAddr(value)
	if err == nil && (!z.Key.HasAddress() || z.fallsBack()) {
		o.Names = append(o.Names, "@client_ip/"+z.Key.network(addr).Addr().String())
	}
	for i := range z.Key.parts {
		if z.Key.parts[i].fold != nil && err == nil {
			continue // anybody may name an account like an address
		}
		segment, part, ok := z.Key.spell(&z.Key.parts[i], value)
		if segment == perkey.Odd { // whatever the other parts are
			o.Names = append(o.Names, segment)
			continue
		}
		if ok {
			o.wanted[i] = segment
		}
		if e := z.Key.Overrides.Lookup([]perkey.Part{part}); ok && i == 0 && e.Bucket != "" {
			o.Names = append(o.Names, e.Bucket)
		}
	}
	if shared := z.Key.Overrides.Named(perkey.SharedPrefix + value).Bucket; shared != "" && !slices.Contains(o.Names, shared) {
		o.Names = append(o.Names, shared)
	}
	first, found := o.wanted[0]
	if len(z.Key.parts) == 1 && found && !slices.Contains(o.Names, first) {
		o.Names = append(o.Names, first)
	}
	o.Search = len(z.Key.parts) > 1 && len(o.wanted) > 0 || z.TrustDevices != nil
	if len(o.wanted) == 1 && found {
		o.Prefix = first + "/"
	}
	return o
}

// fallsBack reports whether requests may be charged to the bucket of the address beside
// the key, because that lacks a part or is not listed.
func (z *Zone) fallsBack() bool {
	return len(z.Key.parts) > 1 && (z.Key.Missing == ByClientIP || z.Key.Missing == Share) || z.Key.Unlisted == ByClientIP
}

// Has reports whether a bucket that was searched for belongs to the value.
func (o *Owned) Has(name string) bool {
	segments := strings.Split(name, "/")
	if o.network.IsValid() {
		return slices.ContainsFunc(segments, func(segment string) bool {
			addr, err := netip.ParseAddr(segment)
			return err == nil && o.network.Contains(addr)
		})
	}
	for i, text := range o.wanted {
		if i < len(segments) && segments[i] == text {
			return true
		}
	}
	return o.wanted == nil
}

// NetworkOf returns the network that a bucket stands for, if the key is the client's address
// and masks it.
func (z *Zone) NetworkOf(name string) (network netip.Prefix, masked bool) {
	if !z.Key.IsAddress() {
		return network, false
	}
	addr, err := netip.ParseAddr(name)
	network = z.Key.network(addr)
	return network, err == nil && !network.IsSingleIP() && network.Addr() == addr
}

// spell returns a value as it stands in names, and as overrides know it. What is written as in names
// is left so. It returns false if a part of the key can have no such value.
func (k *Key) spell(p *part, value string) (segment string, part perkey.Part, ok bool) {
	if p.clientIP {
		addr, err := netip.ParseAddr(value)
		part.Network = k.network(addr)
		return part.Network.Addr().String(), part, err == nil
	}
	if part.Digest, ok = bucketkey.ParseDigest(value); ok {
		return value, part, true
	}
	if text, err := url.PathUnescape(value); !p.digest && err == nil && string(bucketkey.AppendPart(nil, text)) == value {
		value = text
	}
	if p.fold != nil {
		if value = cmp.Or(p.fold(value), value); value == oddName {
			return perkey.Odd, part, true
		}
	}
	name := bucketkey.AppendPart(nil, value)
	if p.digest {
		name = bucketkey.DigestOf(value).Append(nil)
	}
	return string(name), perkey.Part{Digest: bucketkey.DigestOf(value)}, true
}

// NameOf returns the name of the one bucket that a text stands for: a value, if the key has one part,
// or a name. That may be one that an override lets several keys share. It returns false if the zone
// can have no such bucket.
func (z *Zone) NameOf(text string) (name string, ok bool) {
	if name = text; len(z.Key.parts) == 1 && !strings.HasPrefix(text, "@") {
		name, _, _ = z.Key.spell(&z.Key.parts[0], text)
	}
	n := z.Read(name)
	return cmp.Or(n.Bucket, name), n.Valid
}

// A Named bucket is what its name tells.
type Named struct {
	perkey.Entry        // the limit that the config gives it
	Unlisted     Policy // for requests of its key, if no override lists that: they are not charged to it
	Valid        bool   // a bucket of the zone may have the name, by its parts or as one that several keys share
}

// Read reads the name of a bucket.
func (z *Zone) Read(name string) (n Named) {
	parts, named := z.partsOf(name)
	if !named {
		n.Entry = z.Key.Overrides.Named(name)
		n.Valid = slices.Contains([]string{SharedBucket, perkey.Unclear, perkey.Odd, n.Bucket}, name) || strings.HasPrefix(name, "@client_ip/")
		if perkey.MayBeAny(name) && z.Key.Unlisted == Refuse { // or one that is not listed
			n.Unlisted = Refuse
		}
		return n
	}
	n.Entry, n.Valid = z.Key.Overrides.Lookup(parts), true
	if !n.Listed() {
		n.Unlisted = z.Key.Unlisted
	}
	return n
}

// partsOf returns the parts of the key that has the bucket of a name. It returns false
// if the name is not made of such parts.
func (z *Zone) partsOf(name string) (parts []perkey.Part, named bool) {
	segments := strings.Split(name, "/")
	if len(segments) < len(z.Key.parts) {
		return nil, false
	}
	for i, p := range z.Key.parts {
		p.fold = nil // which has made the name
		spelled, part, ok := z.Key.spell(&p, segments[i])
		if !ok || spelled != segments[i] {
			return nil, false
		}
		parts = append(parts, part)
	}
	rest := segments[len(parts):]
	return parts, len(rest) == 0 || rest[0] == "@device" // see [deviceKey]
}
