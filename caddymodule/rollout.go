package caddymodule

import (
	"net/http"

	"github.com/cespare/xxhash/v2"
)

// enforces reports whether the zone refuses requests of a key that overflow,
// rather than to count them. The hash has no seed, so that every node that
// serves a site decides alike about a key, and so do all zones.
func (z *Zone) enforces(k key) bool {
	return !z.shadow && (z.Enforce == 100 || xxhash.Sum64String(k.name)%100 < uint64(z.Enforce))
}

// early reports whether a request came before the handshake was complete, as
// TLS 1.3 and QUIC let clients do who were here before. It may be a replay, and
// over QUIC nobody has shown yet that its address is its own.
func early(r *http.Request) bool { return r.TLS != nil && !r.TLS.HandshakeComplete }
