package cli

import "github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"

func unbanCommand() command {
	return command{
		use: "unban ADDRESS|NETWORK...", short: "Ends bans", least: 1, most: mostArguments,
		long: "Ends the bans of these very networks, or of those that standard input names with -.",
		run: func(c *adminClient, args []string) error {
			return c.each(args, func(network string, more bool) error {
				return c.end("unban", wire.Change{Network: network, More: more})
			})
		},
	}
}
