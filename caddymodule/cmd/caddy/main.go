// Command caddy is Caddy with the throttle module and all its stores in it.
package main

import (
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	_ "github.com/caddy-throttle/caddy-throttle/caddymodule"
	_ "github.com/caddy-throttle/caddy-throttle/caddymodule/postgres"
	_ "github.com/caddy-throttle/caddy-throttle/caddymodule/redis"
)

func main() {
	caddycmd.Main()
}
