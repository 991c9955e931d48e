package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/text"
)

func topCommand() command {
	var in wire.TopQuery
	return command{
		use: "top [ZONE]", short: "Shows who sends most and who is refused most", most: 1,
		long: `Shows which keys sent most requests and which were refused most in about the last
minute, in each zone. Refusals are counted one by one. Above a hundred requests a
second, those that are let in are estimated from a sample, and
marked with ~.`,
		example: `  caddy throttle top
  caddy throttle top login --by /24`,
		flags: func(cmd *cobra.Command) {
			cmd.Flags().StringVar(&in.By, "by", "", "Count by ip, /24 or /16; for IPv6 these are /64, /48 and /32. Default: by the keys of the zones")
		},
		run: func(c *adminClient, args []string) error {
			in.Zone = strings.Join(args, "")
			return show(c, "top", in, func(s *wire.Top) {
				var quiet []string
				for i := range s.Zones {
					if s.Zones[i].Requests == 0 {
						quiet = append(quiet, sanitize(s.Zones[i].Zone))
						continue
					}
					c.showTop(&s.Zones[i])
					c.say("")
				}
				if len(quiet) > 0 {
					c.printf("No requests in the last minute: %s\n", strings.Join(quiet, ", "))
				}
				if s.Shared {
					c.say("These are this Caddy's requests alone.")
				}
			})
		},
	}
}

func (c *adminClient) showTop(z *wire.TopZone) {
	how, refused := refusals(z)
	c.printf("%s%s: %s in the last %.0f s, %d %s\n", sanitize(z.Zone), how, text.Plural(z.Requests, "request"), max(1, z.Seconds), z.Refused, refused)
	t := newTable(numeric("REQUESTS"), numeric("REFUSED"), "KEY")
	for _, k := range sendersOf(z) {
		about := ""
		if k.Sampled {
			about = "~"
		}
		t.row(about+fmt.Sprint(k.Admitted+k.Refused), about+fmt.Sprint(k.Refused), shortKey(cmp.Or(k.Network, k.Key)))
	}
	t.print(c)
}

// refusals says what became of the requests that count as refused.
func refusals(z *wire.TopZone) (how, refused string) {
	switch z.Mode {
	case "", "enforcing":
		return "", "refused"
	case "shadow":
		return " (shadow)", "would have been refused"
	}
	return " (" + sanitize(z.Mode) + ", the rest in shadow)", "refused, or would have been"
}

// shownSenders is how many lines a zone has in top, for each of the two lists.
const shownSenders = 10

// sendersOf merges both lists: first the busiest, then those that are refused most and
// are not among them.
func sendersOf(z *wire.TopZone) []wire.TopKey {
	senders := slices.Clone(z.Busiest[:min(shownSenders, len(z.Busiest))])
	for _, k := range z.Denied[:min(shownSenders, len(z.Denied))] {
		if !slices.ContainsFunc(senders, func(other wire.TopKey) bool { return other.Key == k.Key }) {
			senders = append(senders, k)
		}
	}
	return senders
}
