// Package caddymodule is the modules of throttle as Caddy knows them, and their registration.
// Begin with [App], which holds the global options, [Handler] and [InFlight]. What runs of them
// is in internal/engine and internal/inflight. It may import all packages of the adapter, and no client of a database.
package caddymodule

import (
	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin"
	zonefile "github.com/caddy-throttle/caddy-throttle/caddymodule/internal/caddyfile"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/cli"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/usage"
)

func init() {
	for _, module := range []caddy.Module{
		App{}, Memory{}, Handler{}, InFlight{}, Seen{}, MatchBlocked{}, admin.API{},
	} {
		caddy.RegisterModule(module)
	}
	httpcaddyfile.RegisterGlobalOption("throttle", zonefile.ParseGlobal)
	httpcaddyfile.RegisterDirective("throttle", parseThrottle)
	httpcaddyfile.RegisterDirective("in_flight", parseInFlight)
	httpcaddyfile.RegisterDirective("throttle_seen", parseSeen)
	// Reports of browsers must not fill the buckets of the people who send them.
	httpcaddyfile.RegisterDirectiveOrder("throttle_seen", httpcaddyfile.After, "request_body")
	// Rules see both addresses, and passwords are not checked before. What stands after the same
	// directive runs in the opposite order: whom throttle refuses need not wait for a slot.
	httpcaddyfile.RegisterDirectiveOrder("in_flight", httpcaddyfile.After, "try_files")
	httpcaddyfile.RegisterDirectiveOrder("throttle", httpcaddyfile.After, "try_files")
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:  "throttle",
		Usage: "COMMAND ...", // in capitals, as manual pages lose words in angle brackets
		Short: "Steers rate limits, and tunes them with access logs",
		Long: `
Most commands speak to a running Caddy, over its admin endpoint: they show what the
limits do, let clients back in, and ban networks for a while.

The exit code is 1 if something fails, and 2 if the command is used in a wrong way.`,
		CobraFunc: func(cmd *cobra.Command) {
			usage.RefuseUnknown(cmd)
			cmd.AddCommand(guestCommands()...)
			cmd.AddCommand(cli.Commands()...)
		},
	})
}

// parseThrottle sets up a route with the handler.
func parseThrottle(h httpcaddyfile.Helper) ([]httpcaddyfile.ConfigValue, error) {
	handler, err := zonefile.ParseHandler(h)
	if err != nil {
		return nil, err
	}
	return h.NewRoute(nil, &Handler{Handler: *handler}), nil
}
