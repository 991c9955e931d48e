package cli

import "github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"

func banCommand() command {
	var h holding
	return command{
		use: "ban ADDRESS|NETWORK...", short: "Refuses networks for a while", least: 1, most: mostArguments,
		long: `Refuses all requests of networks at every throttle directive. With -
they are read from standard input, one a line. Exemptions beat bans. An IPv6 address
stands for its /64.`,
		example: `  caddy throttle ban 203.0.113.0/24 --for 2h --note "scraper, ticket 4711"`,
		flags:   h.add,
		run: func(c *adminClient, args []string) error {
			return c.each(args, func(network string, more bool) error {
				return c.change("ban", wire.Change{Network: network, More: more}, &h)
			})
		},
	}
}
