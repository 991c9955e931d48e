package caddymodule

import (
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"

	zonefile "github.com/caddy-throttle/caddy-throttle/caddymodule/internal/caddyfile"
)

func init() {
	httpcaddyfile.RegisterGlobalOption("throttle", zonefile.ParseGlobal)
	httpcaddyfile.RegisterDirective("throttle", parseThrottle)
	// After the rewrites, so that rules see both addresses, and before passwords are
	// checked.
	httpcaddyfile.RegisterDirectiveOrder("throttle", httpcaddyfile.After, "try_files")
}

// parseThrottle sets up a route with the handler.
func parseThrottle(h httpcaddyfile.Helper) ([]httpcaddyfile.ConfigValue, error) {
	handler, err := zonefile.ParseHandler(h)
	if err != nil {
		return nil, err
	}
	return h.NewRoute(nil, &Handler{Handler: *handler}), nil
}
