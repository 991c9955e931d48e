package config

import (
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/sharedstore"
)

// Shadow makes a zone a dry run. It counts requests as if all zones of its handler were enforced.
type Shadow struct {
	// Mark responses that the zone would have refused with the header
	// `Server-Timing: throttle;desc="<zone>"`. A script in the page can read it and
	// report it to the handler `throttle_seen`, so that you know how many of the
	// refused clients are people. Default: no mark.
	ServerTiming bool `json:"server_timing,omitempty"`
}

// compile compiles for whom the zone is enforced: for so many percent of its keys.
func (s *Shadow) compile(r *limit.Rule, percent int) error {
	r.Enforce = percent
	if s == nil {
		return Within("enforce", percent, 1, 100)
	}
	r.Shadow, r.ServerTiming = true, s.ServerTiming
	return refuse("enforce", percent != 100, "enforce and shadow exclude each other: want shadow for a dry run of all keys, or enforce <percent> for one of the others")
}

// StorePolicies are the words after on_store_error.
var StorePolicies = []string{sharedstore.Local.String(), sharedstore.Allow.String(), sharedstore.Deny.String()}
