// Package standard is throttle with all that its usual build has. Import it, or the packages
// below that a site needs:
//
//	xcaddy build --with github.com/caddy-throttle/caddy-throttle/caddymodule/standard
package standard

import (
	// Each registers its modules.
	_ "github.com/caddy-throttle/caddy-throttle/caddymodule"
	_ "github.com/caddy-throttle/caddy-throttle/caddymodule/cli"
	_ "github.com/caddy-throttle/caddy-throttle/caddymodule/crawler"
	_ "github.com/caddy-throttle/caddy-throttle/caddymodule/inspector"
	_ "github.com/caddy-throttle/caddy-throttle/caddymodule/listener"
	_ "github.com/caddy-throttle/caddy-throttle/caddymodule/postgres"
	_ "github.com/caddy-throttle/caddy-throttle/caddymodule/redis"
	_ "github.com/caddy-throttle/caddy-throttle/caddymodule/seen"
	_ "github.com/caddy-throttle/caddy-throttle/caddymodule/tune"
)
