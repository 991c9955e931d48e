package cli

import "github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"

func banCommand() command {
	var h holding
	return command{
		use: "ban ADDRESS|CIDR", short: "Refuses a network for a while", least: 1, most: 1,
		long: `Refuses all requests of a network at every throttle directive of this Caddy.
Exemptions beat bans. An IPv6 address stands for its /64.`,
		example: `  caddy throttle ban 203.0.113.0/24 --for 2h --note "scraper, ticket 4711"`,
		flags:   h.add,
		run: func(c *adminClient, args []string) error {
			return c.change("ban", wire.Change{Network: args[0]}, &h, " is banned")
		},
	}
}
