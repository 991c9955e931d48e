// Package cli is the commands of `caddy throttle` that speak to a running Caddy, over its admin
// API. It registers itself, and a build can leave it out. Begin with the table of commands. It
// imports the JSON of that API, and nothing of what runs.
package cli

import (
	"strings"

	"github.com/spf13/pflag"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/command"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
)

func init() {
	for i := range commands {
		command.Register(commands[i].cobra)
	}
}

// A spec describes a command, which asks a running Caddy.
type spec struct {
	use, short, long, example string
	least, most               int // arguments
	flags                     func(*client, *pflag.FlagSet)
	run                       func(c *client, args []string) error
}

// mostArguments bounds those of commands that take several clients.
const mostArguments = 10_000

var commands = []spec{
	{
		use: "status", short: "Shows what the zones of a running Caddy do",
		long: `Shows on one screen whether zones enforce, how many requests a second they admit and
refuse, the store, changes at run time, what each zone has met, and warnings. With
--json there is more, such as totals.`,
		run: func(c *client, _ []string) error { return show(c, "zones", nil, c.showStatus) },
	},
	{
		use: "top [ZONE]", short: "Shows who sends most and who is refused most", most: 1,
		long: `Shows which keys sent most requests and which were refused most in about the last
minute, in each zone. Estimates are marked with ~.`,
		example: `  caddy throttle top
  caddy throttle top login --by /24`,
		flags: func(c *client, f *pflag.FlagSet) {
			f.StringVar(&c.top.By, "by", "", "Count by ip, /24 or /16; for IPv6 these are /64, /48 and /32. Default: by the keys of the zones")
		},
		run: func(c *client, args []string) error {
			c.top.Zone = strings.Join(args, "")
			return show(c, "top", c.top, c.showTop)
		},
	},
	{
		use: "why ADDRESS|KEY|CODE", short: "Shows why a client is refused", least: 1, most: 1,
		long: `Shows the buckets of a client in all zones, and which limit decides. Give an address,
the name of an account, a plain API key, a key as the access log shows it, or the
support code on the page of a refusal. For a code it also shows what was refused
then, and for an address what was refused to it lately.`,
		example: `  caddy throttle why 203.0.113.7
  caddy throttle why 7K2M-Q8XD`,
		flags: func(c *client, f *pflag.FlagSet) { f.StringVar(&c.of.Zone, "zone", "", "Look in one zone alone") },
		run: func(c *client, args []string) error {
			c.of.Client = asShown(args[0])
			return show(c, "why", c.of, c.showWhy)
		},
	},
	{
		use: "release ADDRESS|NETWORK|KEY...", short: "Lets clients back in at once", most: mostArguments,
		long: `Empties the buckets of clients in all zones and ends their blocks, in shadow and in
shared stores, too. Give addresses, networks, the names of accounts, plain API keys,
or keys as the access log shows them. They start afresh, and are refused again if they
go on as before. Bans stay; see unban.`,
		example: `  caddy throttle release 203.0.113.7
  caddy throttle release alice --zone account
  caddy throttle release --all --zone login`,
		flags: func(c *client, f *pflag.FlagSet) {
			f.StringVar(&c.of.Zone, "zone", "", "Release in one zone alone")
			f.BoolVar(&c.of.All, "all", false, "All clients of the zone")
		},
		run: func(c *client, args []string) error {
			if c.of.All == (len(args) > 0) || c.of.All && c.of.Zone == "" {
				return command.UsageErrorf("want clients, or --all --zone ZONE")
			}
			if c.of.All {
				return c.release()
			}
			return each(args, func(client string) error {
				c.of.Client = asShown(client)
				return c.release()
			})
		},
	},
	{
		use: "ban ADDRESS|NETWORK...", short: "Refuses networks for a while", least: 1, most: mostArguments,
		long: `Refuses all requests of networks at every throttle directive. Exemptions take
precedence over bans, except static_files. An IPv6 address means its /64.`,
		example: `  caddy throttle ban 203.0.113.0/24 --for 2h --note "scraper, ticket 4711"`,
		flags:   (*client).changeFlags,
		run: func(c *client, args []string) error {
			return each(args, func(network string) error { return c.make("ban", wire.Change{Network: network}) })
		},
	},
	{
		use: "unban ADDRESS|NETWORK...", short: "Ends bans", least: 1, most: mostArguments,
		long: "Ends the bans of exactly these networks.",
		run: func(c *client, args []string) error {
			return each(args, func(network string) error { return c.end("unban", wire.Change{Network: network}) })
		},
	},
	{
		use: "bans", short: "Lists bans and other changes at run time",
		long: "Lists the bans, limits and shadow switches in force, and for how long.",
		run:  func(c *client, _ []string) error { return show(c, "overrides", nil, c.showOverrides) },
	},
	{
		use: "journal", short: "Lists who changed what at run time",
		long: "Lists the last 200 changes at run time, the last one first: bans, limits, switches to\nshadow, their ends, and releases.",
		run:  func(c *client, _ []string) error { return show(c, "journal", nil, c.showJournal) },
	},
	{
		use: "limit ZONE [KEY] LIMIT", short: "Changes the limit of a zone or a key for a while", least: 2, most: 4,
		long: `Changes the limit of all keys of a zone, or of one. The limit is a factor such as
x0.5, a capacity and a leak such as 10 1/s, the name of a plan, unlimited, or deny.
Give the key as the access log shows it, an address, or a plain API key.`,
		example: `  caddy throttle limit pages x0.5 --for 9h
  caddy throttle limit api demo-key-of-a-shop gold --for 2h
  caddy throttle limit login 203.0.113.7 unlimited --for 2h`,
		flags: (*client).changeFlags,
		run: func(c *client, args []string) error {
			last := len(args) - 1
			if leak := args[last]; last > 1 && strings.Contains(leak, "/") && !strings.Contains(leak, " ") {
				last-- // the capacity is a word of its own
			}
			if last > 2 {
				return command.UsageErrorf("unexpected %q: want caddy throttle limit ZONE [KEY] LIMIT", args[2])
			}
			return c.make("limit", wire.Change{Zone: args[0], Key: asShown(strings.Join(args[1:last], "")), Limit: strings.Join(args[last:], " ")})
		},
	},
	{
		use: "unlimit ZONE [KEY]", short: "Ends a changed limit", least: 1, most: 2,
		long: "Ends what limit has changed: the limit of a zone, or that of one key.",
		run: func(c *client, args []string) error {
			return c.end("unlimit", wire.Change{Zone: args[0], Key: asShown(strings.Join(args[1:], ""))})
		},
	},
	{
		use: "shadow [ZONE]", short: "Stops a zone, or everything, from refusing for a while", most: 1,
		long: `Switches a zone or an in_flight to shadow: it decides and counts, and refuses nobody.
With --all, this is so for all of them, and bans are ignored.`,
		example: `  caddy throttle shadow --all --for 30m`,
		flags: func(c *client, f *pflag.FlagSet) {
			c.changeFlags(f)
			f.BoolVar(&c.of.All, "all", false, "All zones, and bans")
		},
		run: func(c *client, args []string) error { return c.ofZone("shadow", args, c.make) },
	},
	{
		use: "unshadow [ZONE]", short: "Ends shadow", most: 1, long: "Ends what shadow has switched.",
		flags: func(c *client, f *pflag.FlagSet) {
			f.BoolVar(&c.of.All, "all", false, "What shadow --all has switched")
		},
		run: func(c *client, args []string) error { return c.ofZone("unshadow", args, c.end) },
	},
}
