package cli

import "github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"

func keyCommand() command {
	return command{
		zone: true, use: "key ZONE VALUE...", short: "Shows the key of the bucket of plain values", least: 2, most: 100,
		long: `Shows the key that a zone makes of plain values, one for each part of its key: an
address is masked, a name folded, a secret replaced by its digest.`,
		example: `  caddy throttle key login 203.0.113.7
  caddy throttle key api demo-key-of-a-shop`,
		run: func(c *adminClient, args []string) error {
			return show(c, "key", wire.KeyQuery{Zone: args[0], Values: args[1:]}, func(s *wire.Key) { c.say(sanitize(s.Key)) })
		},
	}
}
