// Command caddy is Caddy with the throttle module in it.
package main

import (
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	_ "github.com/caddy-throttle/caddy-throttle/caddymodule"
)

func main() {
	caddycmd.Main()
}
