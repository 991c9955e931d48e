package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/text"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/usage"
)

func releaseCommand() command {
	var in wire.ClientQuery
	return command{
		use: "release ADDRESS|NETWORK|KEY...", short: "Lets clients back in at once", most: mostArguments,
		long: `Empties the buckets of clients in all zones and ends their blocks, in shadow and in
shared stores, too. Give addresses, networks, the names of accounts, plain API keys,
or keys as the access log shows them. They start afresh, and are refused again if they
go on as before. Bans stay; see unban.`,
		example: `  caddy throttle release 203.0.113.7
  caddy throttle release alice --zone login
  caddy throttle release --all --zone login`,
		flags: func(cmd *cobra.Command) {
			cmd.Flags().StringVar(&in.Zone, "zone", "", "Release in one zone alone")
			cmd.Flags().BoolVar(&in.All, "all", false, "All clients of the zone")
		},
		run: func(c *adminClient, args []string) error {
			if in.All {
				if len(args) > 0 || in.Zone == "" {
					return usage.Errorf("--all wants --zone, and no client")
				}
				return c.release(in)
			}
			if len(args) == 0 {
				return usage.Errorf("want caddy throttle release ADDRESS|NETWORK|KEY..., or --all --zone ZONE")
			}
			return c.each(args, func(client string) error {
				in.Client = asShown(client)
				return c.release(in)
			})
		},
	}
}

func (c *adminClient) release(in wire.ClientQuery) error {
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
	if more := s.Count - len(s.Freed); more > 0 {
		c.printf("and %d more, %d in all\n", more, s.Count)
	}
	switch {
	case s.Count == 0 && in.All:
		c.say("No bucket of the zone was in use.")
	case s.Count == 0:
		c.printf("No bucket of %s was in use.\n", sanitize(in.Client))
	}
	if s.Banned {
		c.say("A ban still holds: see caddy throttle bans.")
	}
	if s.Failed != "" {
		return fmt.Errorf("the release ended halfway: %s", text.Printable(s.Failed, 1000))
	}
	c.showPartial(s.Complete, s.Problem)
	return nil
}
