package caddymodule

import (
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
)

func init() {
	httpcaddyfile.RegisterGlobalOption("throttle", parseGlobal)
	httpcaddyfile.RegisterDirective("throttle", parseThrottle)
	// After the rewrites, so that rules see both addresses, and before passwords are
	// checked.
	httpcaddyfile.RegisterDirectiveOrder("throttle", httpcaddyfile.After, "try_files")
}

// parseThrottle sets up a route with the handler.
func parseThrottle(h httpcaddyfile.Helper) ([]httpcaddyfile.ConfigValue, error) {
	handler, err := parseHandler(h)
	if err != nil {
		return nil, err
	}
	return h.NewRoute(nil, &Handler{handlerConfig: *handler}), nil
}
