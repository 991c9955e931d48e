// Package caddymodule is the modules of throttle as Caddy knows them, and their registration.
// Begin with [App], which holds the global options, and [Handler]. What runs of them is in
// internal/engine. It may import all packages of the adapter, and no client of a database.
package caddymodule

import (
	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin"
	zonefile "github.com/caddy-throttle/caddy-throttle/caddymodule/internal/caddyfile"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/inspector"
)

func init() {
	for _, module := range []caddy.Module{
		App{}, Memory{}, Handler{}, Seen{}, MatchBlocked{}, VerifiedCrawler{}, DropConnections{}, DropPackets{}, admin.API{}, inspector.Inspector{},
	} {
		caddy.RegisterModule(module)
	}
	httpcaddyfile.RegisterGlobalOption("throttle", zonefile.ParseGlobal)
	httpcaddyfile.RegisterDirective("throttle", parseThrottle)
	httpcaddyfile.RegisterDirective("throttle_seen", parseSeen)
	httpcaddyfile.RegisterHandlerDirective("throttle_inspector", inspector.Parse)
	for _, d := range []struct {
		name     string
		position httpcaddyfile.Positional
		of       string
	}{
		// Reports of browsers must not fill the buckets of the people who send them.
		{"throttle_seen", httpcaddyfile.After, "request_body"},
		// Rules see both addresses, and passwords are not checked before.
		{"throttle", httpcaddyfile.After, "try_files"},
		// Users log in before, and a handle that serves the rest of the site comes after.
		{"throttle_inspector", httpcaddyfile.Before, "invoke"},
	} {
		httpcaddyfile.RegisterDirectiveOrder(d.name, d.position, d.of)
	}
}

// parseThrottle sets up a route with the handler.
func parseThrottle(h httpcaddyfile.Helper) ([]httpcaddyfile.ConfigValue, error) {
	handler, err := zonefile.ParseHandler(h)
	if err != nil {
		return nil, err
	}
	return h.NewRoute(nil, &Handler{Handler: *handler}), nil
}
