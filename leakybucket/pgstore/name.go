package pgstore

import (
	"crypto/sha256"
	"encoding/hex"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// longestName is how long a name may get before a digest stands in for it, in
// bytes. An index entry has room for some 2,700.
const longestName = 1024

// name returns the name of a charge's bucket: the prefix, : or ~ for shadow, the
// zone, a slash and the key. A prefix has none of these signs and a zone no
// slash, so no two buckets share a name; a digest has no slash after its sign.
func (s *Store) name(zone, key string, shadow bool) string {
	sign := ":"
	if shadow {
		sign = "~"
	}
	name := s.prefix + sign + zone + "/" + key
	if len(name) > longestName {
		sum := sha256.Sum256([]byte(name))
		name = s.prefix + sign + "@sha256=" + hex.EncodeToString(sum[:])
	}
	return name
}

func (s *Store) nameOf(c *leakybucket.Charge) string { return s.name(c.Zone, c.Key, c.Shadow) }
