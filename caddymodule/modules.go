// Package caddymodule is the modules of throttle as Caddy knows them, and their registration.
// Begin with [App], which holds the global options, [Handler] and [InFlight]. What runs of them
// is in internal/engine and internal/inflight. It may import all packages of the adapter, and no client of a database.
package caddymodule

import (
	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin"
	zonefile "github.com/caddy-throttle/caddy-throttle/caddymodule/internal/caddyfile"
)

func init() {
	for _, module := range []caddy.Module{
		App{}, Memory{}, Handler{}, InFlight{}, MatchBlocked{}, admin.API{},
	} {
		caddy.RegisterModule(module)
	}
	httpcaddyfile.RegisterGlobalOption("throttle", zonefile.ParseGlobal)
	httpcaddyfile.RegisterDirective("throttle", parseThrottle)
	httpcaddyfile.RegisterDirective("in_flight", parseInFlight)
	// Rules see both addresses, and passwords are not checked before. What stands after the same
	// directive runs in the opposite order: whom throttle refuses need not wait for a slot.
	httpcaddyfile.RegisterDirectiveOrder("in_flight", httpcaddyfile.After, "try_files")
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
