package cli

import (
	"cmp"
	"net/http"
	"strings"

	"github.com/spf13/cobra"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/text"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/usage"
)

func checkCommand() command {
	in := wire.CheckQuery{Method: http.MethodGet}
	var headers []string
	return command{
		use: "check URL", short: "Shows what zones a request would meet", least: 1, most: 1,
		long: `Follows a request through the sites, matchers and throttle directives of a running
Caddy, and shows which zones would charge it, under which key, and whether it fits.
The request is not made, and nothing is charged.`,
		example: `  caddy throttle check https://example.com/wp-login.php --client 203.0.113.7 --method POST
  caddy throttle check https://example.com/api --client 203.0.113.7 --header "X-Api-Key: 4711"`,
		flags: func(cmd *cobra.Command) {
			cmd.Flags().StringVar(&in.ClientIP, "client", "", "The address of the client. Required")
			cmd.Flags().StringVar(&in.Method, "method", in.Method, "The method")
			cmd.Flags().StringArrayVar(&headers, "header", nil, "A header, such as \"X-Api-Key: 4711\"; may repeat")
			cmd.Flags().StringVar(&in.Body, "body", "", "The body")
		},
		run: func(c *adminClient, args []string) error {
			if in.URL = args[0]; in.ClientIP == "" {
				return usage.Errorf("want --client, such as --client 203.0.113.7")
			}
			in.Headers = make(map[string]string)
			for _, header := range headers {
				name, value, two := strings.Cut(header, ":")
				if !two {
					return usage.Errorf("invalid --header %q: want a name, a colon and a value", header)
				}
				in.Headers[strings.TrimSpace(name)] = strings.TrimSpace(value)
			}
			return show(c, "check", in, c.showCheck)
		},
	}
}

func (c *adminClient) showCheck(s *wire.Check) {
	switch {
	case s.Exempt:
		c.say("The global options exempt this request.")
		return
	case s.Directives == 0:
		c.say("This request comes to no throttle directive: check the host, the port and the matchers.")
		return
	case s.Banned:
		c.say("The client is banned, which answers before any zone: see caddy throttle bans.")
	}
	if len(s.Zones) == 0 {
		c.printf("It comes to %s, and no zone there would charge it: none matches, or an exemption or an unlimited limit frees it.\n", text.Plural(s.Directives, "throttle directive"))
		return
	}
	var buckets []wire.Bucket
	t := newTable("ZONE", "KEY", numeric("COST"), numeric("LEVEL"), numeric("OF"), "VERDICT", "RULE")
	for _, z := range s.Zones {
		cost, level, capacity := measures(z.Verdict.Cost, z.Level, z.Capacity)
		t.row(sanitize(z.Zone), sanitize(cmp.Or(z.Network, z.Key)), cost, level, capacity, verdictText(&z.Bucket), ruleText(&z.Bucket))
		buckets = append(buckets, z.Bucket)
	}
	t.print(c)
	c.showGroups(buckets)
}
