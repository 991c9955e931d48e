package cli

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/text"
)

func bucketsCommand() command {
	in := wire.BucketsQuery{Sort: "level", Limit: 20}
	return command{
		use: "buckets ZONE", short: "Lists the fullest buckets of a zone", least: 1, most: 1,
		long: `Lists buckets of a zone that are not empty: those that refuse now first, then the
fullest. In Redis, this goes through all keys of the database.

A script gets all of them in pages: --sort key, and --after the last key of the page
before. Each page goes through all buckets. If it is not complete, keys are missing:
narrow the listing by --prefix.`,
		example: `  caddy throttle buckets login --refused
  caddy throttle buckets pages --prefix 203.0.113. --sort key
  caddy throttle buckets pages --sort key --limit 1000 --json --after 203.0.113.7`,
		flags: func(cmd *cobra.Command) {
			cmd.Flags().StringVar(&in.Prefix, "prefix", "", "Only keys that begin so")
			cmd.Flags().BoolVar(&in.Shadow, "shadow", false, "The buckets of shadow")
			cmd.Flags().Float64Var(&in.MinFraction, "min-fraction", 0, "Only buckets at least so full, such as 0.5, and blocked ones")
			cmd.Flags().BoolVar(&in.Refused, "refused", false, "Only buckets that refuse a request of cost 1 now")
			cmd.Flags().StringVar(&in.Sort, "sort", in.Sort, "The order: level, key or last")
			cmd.Flags().IntVar(&in.Limit, "limit", in.Limit, "How many to show, up to 1000")
			cmd.Flags().StringVar(&in.After, "after", "", "Only keys behind this one: with --sort key, the next page")
		},
		run: func(c *adminClient, args []string) error {
			in.Zone = args[0]
			return show(c, "buckets", in, func(s *wire.Buckets) {
				c.showLocal(s.Local)
				if complete := s.Complete || s.Local; complete && len(s.Buckets) == 0 {
					c.say("No bucket matches that is not empty.")
				} else {
					if len(s.Buckets) > 0 {
						c.showBuckets(s.Buckets)
					}
					c.printf("%d of %s.\n", len(s.Buckets), text.Plural(s.Matched, "bucket"))
					c.showPartial(complete, "")
				}
			})
		},
	}
}

// showBuckets writes a table of buckets.
func (c *adminClient) showBuckets(buckets []wire.Bucket) {
	t := newTable("ZONE", "KEY", numeric("LEVEL"), numeric("OF"), numeric("FULL"), numeric("EMPTY IN"), "VERDICT", "RULE")
	for _, b := range buckets {
		zone := sanitize(b.Zone)
		if b.Shadow {
			zone += " (shadow)"
		}
		full := fmt.Sprintf("%.0f%%", 100*b.Fraction)
		if b.Capacity == 0 {
			full = "-"
		}
		_, level, capacity := measures(0, b.Level, b.Capacity)
		t.row(zone, shortKey(cmp.Or(b.Network, b.Key)), level, capacity, full, wholeSeconds(b.EmptyIn), verdictText(&b), ruleText(&b))
	}
	t.print(c)
	if slices.ContainsFunc(buckets, func(b wire.Bucket) bool { return b.Shadow }) {
		c.printf(inShadow)
	}
}
