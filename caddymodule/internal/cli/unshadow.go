package cli

import (
	"github.com/spf13/cobra"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
)

func unshadowCommand() command {
	var all bool
	return command{
		zone: true, use: "unshadow [ZONE]", short: "Ends shadow", most: 1, long: "Ends what shadow has switched.",
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
