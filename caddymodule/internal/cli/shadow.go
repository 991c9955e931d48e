package cli

import (
	"github.com/spf13/cobra"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
)

func shadowCommand() command {
	var h holding
	var all bool
	return command{
		use: "shadow [ZONE]", short: "Lets a zone, or everything, refuse nobody for a while", most: 1,
		long: `Switches a zone or an in_flight to shadow: it decides and counts, and refuses nobody.
With --all, no zone and no in_flight refuses anybody, and bans do not hold. Requests
that wait for a delay are let through, unless they also belong to a zone that still
makes requests wait. Those that wait for a slot wait on.`,
		example: `  caddy throttle shadow --all --for 30m`,
		flags: func(cmd *cobra.Command) {
			h.add(cmd)
			cmd.Flags().BoolVar(&all, "all", false, "All zones, and bans")
		},
		run: func(c *adminClient, args []string) error {
			zone, err := zoneOrAll(args, all)
			if err != nil {
				return err
			}
			return c.change("shadow", wire.Change{Zone: zone}, &h)
		},
	}
}

func unshadowCommand() command {
	var all bool
	return command{
		use: "unshadow [ZONE]", short: "Ends shadow", most: 1, long: "Ends what shadow has switched.",
		flags: func(cmd *cobra.Command) { cmd.Flags().BoolVar(&all, "all", false, "What shadow --all has switched") },
		run: func(c *adminClient, args []string) error {
			zone, err := zoneOrAll(args, all)
			if err != nil {
				return err
			}
			return c.end("unshadow", wire.Change{Zone: zone})
		},
	}
}
