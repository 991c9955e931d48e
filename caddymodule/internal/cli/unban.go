package cli

import "github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"

func unbanCommand() command {
	return command{
		use: "unban ADDRESS|CIDR", short: "Ends a ban", least: 1, most: 1, long: "Ends the ban of this very network.",
		run: func(c *adminClient, args []string) error {
			return c.end("unban", wire.Change{Network: args[0]})
		},
	}
}
