// Command caddy is Caddy with throttle, all its guests and all its stores in it.
package main

import (
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	_ "github.com/caddy-throttle/caddy-throttle/caddymodule/standard"
)

func main() {
	caddycmd.Main()
}
