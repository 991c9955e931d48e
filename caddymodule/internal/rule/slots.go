package rule

import (
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/pass"
)

// Slots are how many requests the upstream serves at once.
type Slots struct {
	InFlight int // of each key; zero means any number

	// Share names what clients take turns by. If it is nil, they wait for slots in the
	// order of arrival.
	Share *Key

	// Ranks say which rank a client has in a zone with share. If nil, all are first.
	Ranks *Ranks

	// WarmUp is for how long slots grow to their number after the zone had no request
	// for as long; zero means not at all.
	WarmUp time.Duration

	// RequestBuffer is how much of the body is read before a slot is taken, in bytes.
	RequestBuffer int64
}

// Pass returns what issues the passes of the zone, or nil if the zone sends none.
func (s *Slots) Pass() *pass.Zone {
	if s.Ranks == nil {
		return nil
	}
	return s.Ranks.Pass
}
