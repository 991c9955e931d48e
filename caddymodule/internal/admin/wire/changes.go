package wire

import (
	"time"

	"github.com/caddyserver/caddy/v2"
)

// A Change describes a change at run time, or the end of one.
type Change struct {
	// How long it holds. At most 720h, which is the default.
	For caddy.Duration `json:"for,omitempty"`

	Note string `json:"note,omitempty"`

	// Replace lets it replace another that holds for the same. Otherwise that is an error.
	Replace bool `json:"replace,omitempty"`

	// More says that others follow at once. The answer waits for no other Caddy, and does
	// not say where the change holds: that of the last one does.
	More bool `json:"more,omitempty"`

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

// A Told says where a change holds.
type Told struct {
	Nodes   int    `json:"nodes"`           // that share it
	Holding int    `json:"holding"`         // those of them where it holds; the others follow
	Kept    bool   `json:"kept"`            // also if this Caddy is restarted
	Error   string `json:"error,omitempty"` // why the others will be told later
}

// An Ended says whether there was something to end.
type Ended struct {
	Ended bool  `json:"ended"`
	Told  *Told `json:"told,omitempty"`

	// Key is that of the bucket, which the caller may have named by a secret.
	Key string `json:"key,omitempty"`
}

// Revoked says that the keys of device cookies and passes were replaced.
type Revoked struct {
	Revoked bool `json:"revoked"`
}

// A Span is how long a change holds, who wanted it, and why.
type Span struct {
	Since time.Time `json:"since"`
	Until time.Time `json:"until"`
	By    string    `json:"by,omitempty"`
	Note  string    `json:"note,omitempty"`
}

// An Override is a change that holds.
type Override struct {
	Kind    string `json:"kind"`              // ban, limit or shadow
	Zone    string `json:"zone,omitempty"`    // of a limit or a switch to shadow; a switch without one is of all zones, and of bans
	Key     string `json:"key,omitempty"`     // the name of the bucket whose limit it is; empty means all keys
	Network string `json:"network,omitempty"` // that is banned, or that the key stands for
	Limit   string `json:"limit,omitempty"`   // as it was given
	Span
	Hits uint64 `json:"hits,omitempty"` // requests and connections that this Caddy has refused by a ban
	Told *Told  `json:"told,omitempty"` // if it was made just now
}

// A JournalEntry is something that somebody has changed at run time. The name of a user
// may be anything, so it stands apart.
type JournalEntry struct {
	At     time.Time  `json:"at"`
	Via    string     `json:"via"`             // admin API, as with the commands, remote admin, inspector, or the name of another Caddy's host
	By     string     `json:"by,omitempty"`    // the user of the inspector or the shell, or the name of the certificate
	Action string     `json:"action"`          // ban, unban, limit, unlimit, shadow, unshadow, release, revoke
	Of     string     `json:"of"`              // a network, a zone, a zone and a key, or everything
	Limit  string     `json:"limit,omitempty"` // as it was given
	Until  *time.Time `json:"until,omitempty"`
	Note   string     `json:"note,omitempty"`
}

// ByHeader is the header in which a command says who uses it.
const ByHeader = "Throttle-By"
