package cli

import (
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
)

func banCommand() command {
	var h holding
	return command{
		use: "ban ADDRESS|NETWORK...", short: "Refuses networks for a while", least: 1, most: mostArguments,
		long: `Refuses all requests of networks at every throttle directive. Exemptions take
precedence over bans. An IPv6 address stands for its /64.`,
		example: `  caddy throttle ban 203.0.113.0/24 --for 2h --note "scraper, ticket 4711"`,
		flags:   h.add,
		run: func(c *adminClient, args []string) error {
			return c.each(args, func(network string) error {
				return c.change("ban", wire.Change{Network: network}, &h)
			})
		},
	}
}

func unbanCommand() command {
	return command{
		use: "unban ADDRESS|NETWORK...", short: "Ends bans", least: 1, most: mostArguments,
		long: "Ends the bans of these very networks.",
		run: func(c *adminClient, args []string) error {
			return c.each(args, func(network string) error {
				return c.end("unban", wire.Change{Network: network})
			})
		},
	}
}

func bansCommand() command {
	return command{
		use: "bans", short: "Lists bans and other changes at run time",
		long: "Lists bans, limits and shadow switches that hold, and how long.",
		run: func(c *adminClient, _ []string) error {
			return show(c, "overrides", nil, c.showOverrides)
		},
	}
}
