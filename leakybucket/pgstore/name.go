package pgstore

import (
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	bucketkey "github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

// longestName is the length of the longest name in bytes; longer ones are
// replaced by a digest. An index entry has room for about 2,700 bytes.
const longestName = 1024

// name returns the name of a bucket's row: the prefix, : or ~ for shadow, the
// zone, a slash and the key. No two buckets share a name, because a prefix has
// none of these characters, a zone no slash, and a digest no slash either.
func (s *Store) name(zone, key string, shadow bool) string {
	sign := ":"
	if shadow {
		sign = "~"
	}
	name := s.prefix + sign + zone + "/" + key
	if len(name) > longestName {
		return string(bucketkey.DigestOf(name).Append([]byte(s.prefix + sign)))
	}
	return name
}

func (s *Store) nameOf(c *leakybucket.Charge) string { return s.name(c.Zone, c.Key, c.Shadow) }
