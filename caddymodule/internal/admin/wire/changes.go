package wire

import (
	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/changes"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
)

// A Change describes a change at run time, or the end of one.
type Change struct {
	// How long it holds. At most 720h, which is the default.
	For caddy.Duration `json:"for,omitempty"`

	Note string `json:"note,omitempty"`

	// Replace lets it replace another that holds for the same. Otherwise that is an error.
	Replace bool `json:"replace,omitempty"`

	// The zone. Empty means all zones, for shadow alone.
	Zone string `json:"zone,omitempty"`

	// The key of the one bucket whose limit changes, or an address, the network that the
	// key stands for, or a plain value of a secret part. Empty means all of the zone.
	Key string `json:"key,omitempty"`

	// A factor such as x0.5, a capacity and a leak such as "10 1/s", the name of a plan,
	// unlimited, or deny.
	Limit string `json:"limit,omitempty"`

	// The network that is banned: an address, or a network in CIDR notation.
	Network string `json:"network,omitempty"`
}

// An Ended says whether there was something to end.
type Ended struct {
	Ended bool          `json:"ended"`
	Sync  *changes.Sync `json:"sync,omitempty"`

	// Key is that of the bucket, which the caller may have named by a secret.
	Key string `json:"key,omitempty"`
}

// Revoked says that the keys of device cookies and passes were replaced.
type Revoked struct {
	Revoked bool `json:"revoked"`
}

// An Override is a change that holds.
type Override struct {
	override.Held
	Network string        `json:"network,omitempty"` // that is banned, or that the key stands for
	Sync    *changes.Sync `json:"sync,omitempty"`    // if it was made just now
}

// ByHeader is the header in which a command says who uses it.
const ByHeader = "Throttle-By"
