package cli

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/supportcode"
)

func whyCommand() command {
	var in wire.ClientQuery
	return command{
		use: "why ADDRESS|KEY|CODE", short: "Shows why a client is refused", least: 1, most: 1,
		long: `Shows the buckets of a client in all zones: how full they are, how much of a block
is left, and which override decides. It changes nothing. Give an address, the name
of an account, a plain API key, a key as the access log shows it, or the support
code that a refused visitor reads from the page. For a code, it also shows what was
refused then, and for an address what was refused to it lately by any key, such as
that of an account.`,
		example: `  caddy throttle why 203.0.113.7
  caddy throttle why 7K2M-Q8XD`,
		flags: func(cmd *cobra.Command) { cmd.Flags().StringVar(&in.Zone, "zone", "", "Look in one zone alone") },
		run: func(c *adminClient, args []string) error {
			in.Client = asShown(args[0])
			return show(c, "why", in, c.showWhy)
		},
	}
}

func (c *adminClient) showWhy(s *wire.Why) {
	if s.Refusal != nil {
		c.showRefusal(s.Refusal)
	} else if _, code := supportcode.Parse(s.Client); code {
		c.say("This Caddy remembers no refusal with this support code: ask the Caddy that gave it, or look for the code in the access logs.")
		if !s.Refused && len(s.Buckets)+len(s.Unlisted) == 0 {
			return
		}
		c.say("As a key:")
	}
	if s.Ban != nil {
		c.printf("A ban of %s holds%s, and lasts: %s. %s\n", networkText(s.Ban.Network), byText(s.Ban.By), remaining(s.Ban.Until), sanitize(s.Ban.Note))
	}
	c.showShadows(s.Shadows)
	for _, u := range s.Unlisted {
		c.printf("%s: no override lists this key, so %s\n", sanitize(u.Zone), unlistedMeans[u.Policy])
	}
	c.showLocal(s.Local)
	c.showRefusals(s.Refusals)
	switch {
	case s.Refused:
		c.say("It is refused now.")
	case s.Refusal != nil && s.Refusal.Key == "":
		c.say("The request had no key, so no bucket is its own.")
		return
	default:
		c.say("Nothing refuses a request of cost 1 now.")
	}
	if len(s.Buckets) > 0 {
		c.showBuckets(s.Buckets)
	} else {
		c.say("No bucket of this client is in use. A zone with a key for all clients, as with share, has none of one client: see caddy throttle top --by ip.")
	}
	c.showPartial(s.Complete, s.Problem)
}

// showRefusal writes what was refused under a support code.
func (c *adminClient) showRefusal(p *wire.PastRefusal) {
	c.printf("Refused %s ago, at %s:\n", elapsed(p.At), p.At.Local().Format(time.DateTime))
	t := newTable("CODE", "ZONE", "KEY", "REASON", numeric("COST"), numeric("LEVEL"), numeric("OF"), numeric("WAIT"), numeric("BLOCKED FOR"))
	cost, level, capacity := measures(p.Cost, p.Level, p.Capacity)
	t.row(p.Code, sanitize(p.Zone), shortKey(cmp.Or(p.Network, p.Key)), p.Reason, cost, level, capacity, wholeSeconds(p.Wait), wholeSeconds(p.Blocked))
	t.print(c)
	c.say("\nNow:")
}

// showRefusals lists what was refused to an address lately, by whatever key.
func (c *adminClient) showRefusals(refusals []wire.PastRefusal) {
	if len(refusals) == 0 {
		return
	}
	c.say("Refused lately to this address; caddy throttle why <code> says more:")
	t := newTable("CODE", "ZONE", "KEY", "REASON", numeric("AGO"))
	for i := range refusals {
		p := &refusals[i]
		t.row(p.Code, sanitize(p.Zone), shortKey(cmp.Or(p.Network, p.Key)), p.Reason, elapsed(p.At).String())
	}
	t.print(c)
	c.say("\nNow:")
}

// showShadows says which switches keep a client from being refused.
func (c *adminClient) showShadows(shadows []wire.Override) {
	for _, s := range shadows {
		what := "Everything is in shadow by caddy throttle shadow --all: nothing is refused, and bans do not hold."
		if s.Zone != "" {
			what = fmt.Sprintf("The zone %s is in shadow by caddy throttle shadow: it refuses nothing.", sanitize(s.Zone))
		}
		c.printf("%s Left: %s%s. %s\n", what, remaining(s.Until), byText(s.By), sanitize(s.Note))
	}
}

// byText names who has made a change, if that is known.
func byText(by string) string {
	if by == "" {
		return ""
	}
	return ", by " + sanitize(by)
}

// unlistedMeans says what becomes of requests with a key that no override lists, by
// the policy.
var unlistedMeans = map[string]string{
	"client_ip": "its requests are charged to the client's address. Ask why with that.",
	"share":     "its requests are charged to the bucket @share, with those of all such keys.",
	"skip":      "the zone does not charge its requests.",
	"refuse":    "the zone refuses its requests, with the reason unlisted_key.",
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
