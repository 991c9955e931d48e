package caddyfile

import (
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/tokens"
)

func init() {
	for _, o := range ZoneOptions {
		tokens.WantedAfter[o.Name] = o.Usage()
	}
}
