package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/text"
)

func releaseCommand() command {
	var in wire.ClientQuery
	return command{
		use: "release ADDRESS|KEY", short: "Lets a client back in at once", least: 1, most: 1,
		long: `Empties the buckets of a client in all zones and ends their blocks, in shadow and
in shared stores, too. Give an address, the name of an account, a plain API key, or
a key as the access log shows it. The client starts afresh: if it goes on as before,
it is refused again. Bans stay; see unban.`,
		example: `  caddy throttle release 203.0.113.7
  caddy throttle release alice --zone login`,
		flags: func(cmd *cobra.Command) {
			cmd.Flags().StringVar(&in.Zone, "zone", "", "Release in one zone alone")
		},
		run: func(c *adminClient, args []string) error {
			in.Client = args[0]
			s, err := ask[wire.Released](c, "release", in)
			if err != nil {
				return err
			}
			for _, name := range s.Freed {
				if of, shadow := strings.CutPrefix(name, "~"); shadow {
					name = of + " (shadow)"
				}
				c.say("emptied " + sanitize(name))
			}
			if s.Pending {
				c.say("The store is down: this holds on this Caddy, and the store is told when it is back.")
			} else if len(s.Freed) == 0 {
				c.say("No bucket of this client was in use.")
			}
			if s.Banned {
				c.say("A ban still holds: see caddy throttle bans.")
			}
			if s.Failed != "" {
				return fmt.Errorf("the release ended halfway: %s", text.Printable(s.Failed, 1000))
			}
			c.showPartial(s.Complete, s.Problem)
			return nil
		},
	}
}
