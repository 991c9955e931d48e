package cli

import (
	"strings"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/usage"
)

func limitCommand() command {
	var h holding
	return command{
		use: "limit ZONE [KEY] LIMIT", short: "Changes the limit of a zone or a key for a while", least: 2, most: 4,
		long: `Changes the limit of all keys of a zone, or of one. The limit is a factor such as
x0.5, a capacity and a leak such as 10 1/s, the name of a plan, unlimited, or deny.
It is stronger than the config. A factor changes the limits of
overrides, too. The capacity stays large enough for the zone's dearest request. Give
the key as the access log shows it, an address, or a plain API key.`,
		example: `  caddy throttle limit pages x0.5 --until 09:00
  caddy throttle limit api demo-key-of-a-shop gold --for 2h
  caddy throttle limit login 203.0.113.7 unlimited --for 2h`,
		flags: h.add,
		run: func(c *adminClient, args []string) error {
			in, err := limitInput(args)
			if err != nil {
				return err
			}
			return c.change("limit", in, &h)
		},
	}
}

// limitInput reads a zone, perhaps a key, and a limit of one word or two.
func limitInput(args []string) (in wire.Change, err error) {
	last := len(args) - 1
	if leak := args[last]; last > 1 && strings.Contains(leak, "/") && !strings.Contains(leak, " ") {
		last-- // the capacity is a word of its own
	}
	if last > 2 {
		return in, usage.Errorf("unexpected %q: want caddy throttle limit ZONE [KEY] LIMIT", args[2])
	}
	return wire.Change{Zone: args[0], Key: asShown(strings.Join(args[1:last], "")), Limit: strings.Join(args[last:], " ")}, nil
}

func unlimitCommand() command {
	return command{
		use: "unlimit ZONE [KEY]", short: "Ends a changed limit", least: 1, most: 2, long: "Ends what limit has changed: the limit of a zone, or that of one key.",
		run: func(c *adminClient, args []string) error {
			return c.end("unlimit", wire.Change{Zone: args[0], Key: strings.Join(args[1:], "")})
		},
	}
}
