package override

import "time"

// An Origin says where a change comes from. The name of a user may be anything, so it
// stands apart.
type Origin struct {
	Via string // admin API, as with the commands, or inspector
	By  string // the user of the inspector or the shell, or the name of a certificate
}

// A Change is something that somebody has changed at run time.
type Change struct {
	At time.Time
	Origin
	Action string // ban, unban, limit, unlimit, shadow, unshadow, release, revoke
	Of     string // a network, a zone, a zone and a key, or everything
	Limit  string
	Until  *time.Time
	Note   string
}
