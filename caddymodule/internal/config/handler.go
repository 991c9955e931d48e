package config

import (
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// Handler is the JSON of a handler.
type Handler struct {
	// The zones that are charged together. Required. If one of them refuses, none
	// is charged.
	Zone []*Zone `json:"zone,omitempty"`

	// Which requests the zones see, beside their own match. Default: all. In a Caddyfile,
	// the matcher of the directive.
	Match caddyhttp.RawMatcherSets `json:"match,omitempty" caddy:"namespace=http.matchers"`

	// Send the rate-limit headers RateLimit-Policy and RateLimit: the capacity of
	// the enforced zone that is nearest exhaustion, and how much of it is left.
	// Zones keyed by a form field or a cookie do not count, because they would tell
	// which accounts exist. Default: no such headers.
	RateLimitHeaders bool `json:"ratelimit_headers,omitempty"`
}
