package cli

import (
	"strings"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
)

func unlimitCommand() command {
	return command{
		zone: true, use: "unlimit ZONE [KEY]", short: "Ends a changed limit", least: 1, most: 2, long: "Ends what limit has changed: the limit of a zone, or that of one key.",
		run: func(c *adminClient, args []string) error {
			return c.end("unlimit", wire.Change{Zone: args[0], Key: strings.Join(args[1:], "")})
		},
	}
}
