// Package key names buckets. A key is built of parts: a client's network, a header, a route.
// [AppendPart] writes them so that no two keys collide and no client can forge one.
package key

import (
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"strings"
	"unicode/utf8"
)

// longestPart is the most bytes a part of a bucket's name may have before a
// digest replaces it. It bounds how much one client can make a store keep.
const longestPart = 256

// AppendPart appends value to a bucket's name as one part of it, and returns the
// longer name. Bytes that have a meaning in names (/ and %), control bytes,
// bytes that are not valid UTF-8 and a leading @ are percent-encoded. A part that
// would be longer than 256 bytes becomes its digest, as [Digest.Append] writes it.
//
// Two values never share a part. No value can be written as one of our own parts,
// which begin with @.
func AppendPart(name []byte, value string) []byte {
	start := len(name)
	for i := 0; i < len(value); {
		if len(name)-start > longestPart {
			break
		}
		c := value[i]
		if c >= utf8.RuneSelf {
			r, size := utf8.DecodeRuneInString(value[i:])
			if r == utf8.RuneError && size == 1 {
				name = appendEscaped(name, c)
			} else {
				name = append(name, value[i:i+size]...)
			}
			i += size
			continue
		}
		if c == '/' || c == '%' || c < ' ' || c == 0x7f || c == '@' && i == 0 {
			name = appendEscaped(name, c)
		} else {
			name = append(name, c)
		}
		i++
	}
	if len(name)-start > longestPart {
		return DigestOf(value).Append(name[:start])
	}
	return name
}

// A Digest is the SHA-256 of a part. The zero Digest means that it is not known.
type Digest [sha256.Size]byte

// DigestOf returns the digest of a text.
func DigestOf(text string) Digest { return sha256.Sum256([]byte(text)) }

// digestPrefix begins a part that is a digest.
const digestPrefix = "@sha256:"

// Append appends the digest to a bucket's name, as a part from which the value cannot be read:
// @sha256: and the SHA-256 of the whole value, in hexadecimal.
func (d Digest) Append(name []byte) []byte {
	return hex.AppendEncode(append(name, digestPrefix...), d[:])
}

// ParseDigest returns the digest that a part of a bucket's name is. It returns false if
// the part is none.
func ParseDigest(part string) (d Digest, ok bool) {
	written, ok := strings.CutPrefix(part, digestPrefix)
	if !ok || len(written) != 2*len(d) {
		return d, false
	}
	_, err := hex.Decode(d[:], []byte(written))
	return d, err == nil
}

func appendEscaped(name []byte, c byte) []byte {
	const hexadecimal = "0123456789ABCDEF"
	return append(name, '%', hexadecimal[c>>4], hexadecimal[c&15])
}

// translated are the networks in which translators show the hosts of IPv4 to those of IPv6:
// NAT64 (RFC 6052), and SIIT (RFC 2765).
var translated = [...]netip.Prefix{netip.MustParsePrefix("64:ff9b::/96"), netip.MustParsePrefix("::ffff:0:0:0/96")}

// Unmap returns the IPv4 address that an IPv4-mapped address, or one of 64:ff9b::/96 or
// ::ffff:0:0:0/96, stands for, and any other address without its zone.
func Unmap(addr netip.Addr) netip.Addr {
	addr = addr.Unmap().WithZone("")
	for _, network := range translated {
		if network.Contains(addr) {
			raw := addr.As16()
			return netip.AddrFrom4([4]byte(raw[12:]))
		}
	}
	return addr
}

// ClientPrefix returns the network that stands for a client at addr, since one
// client may have many addresses: that of [Unmap], whose bits beyond the prefix lengths are
// masked. The lengths are from 0 to 32 and from 0 to 128. An invalid addr gives
// an invalid prefix.
func ClientPrefix(addr netip.Addr, ipv4Bits, ipv6Bits int) netip.Prefix {
	addr = Unmap(addr)
	bits := ipv6Bits
	if addr.Is4() {
		bits = ipv4Bits
	}
	// Prefix fails only for an invalid addr or length, and then returns the zero Prefix.
	prefix, _ := addr.Prefix(bits)
	return prefix
}
