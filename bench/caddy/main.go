// Caddy with throttle and mholt/caddy-ratelimit, to measure both in one process.
package main

import (
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	_ "github.com/caddyserver/caddy/v2/modules/standard"
	_ "github.com/mholt/caddy-ratelimit"

	_ "github.com/caddy-throttle/caddy-throttle/caddymodule"
	_ "github.com/caddy-throttle/caddy-throttle/caddymodule/tune"
)

func main() { caddycmd.Main() }
