package key

import (
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"unicode/utf8"
)

// longestPart is how long a part of a bucket's name may get before a digest
// stands in for it, in bytes. It bounds what one client can make a store keep.
const longestPart = 256

// AppendPart appends value to a bucket's name as one part of it. Bytes that
// mean something in a name (/ and %), control bytes, bytes that are not valid
// UTF-8 and a leading @ are percent-encoded, and a part that would be longer
// than 256 bytes becomes its digest. So two values never share a part, and no
// value spells a part that begins with @, which are ours.
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
		return AppendDigest(name[:start], value)
	}
	return name
}

// AppendDigest appends a part that tells values apart and cannot be read:
// @sha256: and the SHA-256 of the whole value, in hexadecimal.
func AppendDigest(name []byte, value string) []byte {
	sum := sha256.Sum256([]byte(value))
	return hex.AppendEncode(append(name, "@sha256:"...), sum[:])
}

func appendEscaped(name []byte, c byte) []byte {
	const hexadecimal = "0123456789ABCDEF"
	return append(name, '%', hexadecimal[c>>4], hexadecimal[c&15])
}

// ClientPrefix returns the network that addr counts as, since a client may
// have many addresses: an IPv4-mapped address is IPv4, a scope is no part of
// who it is, and what lies beyond the prefix lengths is masked. The bits are
// from 0 to 32 and from 0 to 128.
func ClientPrefix(addr netip.Addr, ipv4Bits, ipv6Bits int) netip.Prefix {
	addr = addr.Unmap().WithZone("")
	bits := ipv6Bits
	if addr.Is4() {
		bits = ipv4Bits
	}
	// Prefix fails for an invalid addr or length only, with the zero Prefix.
	prefix, _ := addr.Prefix(bits)
	return prefix
}
