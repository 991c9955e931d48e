package caddymodule

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/accesslog"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/supportcode"
)

// nightCommands are the commands that speak to a running Caddy.
func nightCommands() []*cobra.Command {
	return []*cobra.Command{
		statusCommand(), topCommand(), whyCommand(), checkCommand(), bucketsCommand(), keyCommand(), releaseCommand(),
		banCommand(), unbanCommand(), bansCommand(), limitCommand(), unlimitCommand(), shadowCommand(), unshadowCommand(),
		revokeDevicesCommand(),
	}
}

// A remote is how a command reaches the admin API of a running Caddy.
type remote struct {
	address, config, adapter string
	json                     bool
	out                      bytes.Buffer // what people read
	answers                  bytes.Buffer // what --json prints instead
}

// A remoteCommand is a command that asks a running Caddy.
type remoteCommand struct {
	use, short, long, example string
	args                      cobra.PositionalArgs
	flags                     func(*cobra.Command)
	run                       func(r *remote, args []string) error
}

func (c remoteCommand) command() *cobra.Command {
	r := new(remote)
	cmd := &cobra.Command{Use: c.use, Short: c.short, Long: "\n" + c.long, Example: c.example, Args: func(cmd *cobra.Command, args []string) error {
		if err := c.args(cmd, args); err != nil {
			return fail(cmd, usageErrorf("want caddy throttle %s", c.use))
		}
		return nil
	}}
	cmd.Flags().StringVar(&r.address, "address", "", "The address of the admin endpoint. Default: that of the config, or localhost:2019")
	cmd.Flags().StringVarP(&r.config, "config", "c", "", "A config file whose admin endpoint is asked")
	cmd.Flags().StringVarP(&r.adapter, "adapter", "a", "", "The adapter of that config file, such as caddyfile")
	cmd.Flags().BoolVar(&r.json, "json", false, "Print JSON")
	if c.flags != nil {
		c.flags(cmd)
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		err := c.run(r, args)
		out := &r.out
		if r.json {
			out = &r.answers
		}
		_, failed := out.WriteTo(cmd.OutOrStdout())
		return fail(cmd, cmp.Or(err, failed))
	}
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return fail(cmd, usageError{err}) })
	return cmd
}

// ask sends a request and decodes the answer.
func (r *remote) ask(method, path string, in, out any) error {
	address, err := caddycmd.DetermineAdminAPIAddress(r.address, nil, r.config, r.adapter)
	if err != nil {
		return err
	}
	var body io.Reader
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(text)
	}
	resp, err := caddycmd.AdminAPIRequest(address, method, path, http.Header{}, body)
	if err != nil {
		return plainly(err, address)
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return fmt.Errorf("reading the answer: %w", err)
	}
	var indented bytes.Buffer
	if err := json.Indent(&indented, bytes.TrimSpace(answer), "", "\t"); err != nil {
		return fmt.Errorf("reading the answer: %w", err)
	}
	fmt.Fprintln(&r.answers, escapeJSON(indented.String()))
	if err := json.Unmarshal(answer, out); err != nil {
		return fmt.Errorf("reading the answer: %w", err)
	}
	return nil
}

// plainly returns an error of the admin endpoint as a person can read it.
func plainly(err error, address string) error {
	if _, answer, answered := strings.Cut(err.Error(), ": {"); answered {
		var said struct{ Error string }
		if json.NewDecoder(strings.NewReader("{"+answer)).Decode(&said) == nil && said.Error != "" {
			return errors.New(printableLine(said.Error))
		}
	}
	if _, why, dialled := strings.Cut(err.Error(), ": dial "); dialled {
		return fmt.Errorf("no Caddy answers at %s (%s): if its admin endpoint is elsewhere, want --address or --config; with admin off, it cannot be asked",
			printableLine(address), printableLine(why))
	}
	return errors.New(accesslog.Printable(err.Error(), 2000))
}

// printableLine is what a terminal may show of a message that quotes what it complains
// of: without a second escape of the quotes in it.
func printableLine(text string) string {
	return strings.ReplaceAll(accesslog.Printable(text, 2000), `\\`, `\`)
}

// escapeJSON escapes what a terminal should not show, which in JSON stands in strings
// alone.
func escapeJSON(text string) string {
	var b strings.Builder
	for _, r := range text {
		switch {
		case r == '\n' || r == '\t' || strconv.IsPrint(r):
			b.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// shown returns text from clients as a terminal may show it.
func shown(text string) string { return accesslog.Printable(text, 120) }

// digits returns a number with few digits.
func digits(n float64) string {
	switch {
	case n == 0:
		return "0"
	case math.Abs(n) >= 100:
		return fmt.Sprintf("%.0f", n)
	}
	return fmt.Sprintf("%.3g", n)
}

// plural returns a number of things.
func plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// seconds returns a duration for people.
func seconds(s float64) string {
	if s == 0 {
		return "-"
	}
	return time.Duration(math.Ceil(s) * float64(time.Second)).String()
}

// left returns how long a span still lasts.
func left(s wire.Span) string {
	if s.Until.IsZero() {
		return "no end"
	}
	return max(0, time.Until(s.Until)).Round(time.Second).String()
}

// showShare shows what the slots of a zone with share have to do.
func (r *remote) showShare(zone string, s *wire.Slots) {
	var rows, keys []string
	for _, row := range s.Rows {
		rows = append(rows, fmt.Sprintf("%d %s", row.Waiting, row.Rank))
	}
	fmt.Fprintf(&r.out, "%s: %d of %d slots busy, mean %.1f s. Waiting: %s.", shown(zone), s.Busy, s.Slots, s.MeanSeconds, strings.Join(rows, ", "))
	for _, k := range s.Top {
		keys = append(keys, fmt.Sprintf("%s %.1f s", shown(k.Key), k.Seconds))
	}
	if len(keys) > 0 {
		fmt.Fprintf(&r.out, " Busiest: %s.", strings.Join(keys, ", "))
	}
	fmt.Fprintln(&r.out)
}

func statusCommand() *cobra.Command {
	return remoteCommand{
		use: "status", short: "Shows what the zones of a running Caddy do", args: cobra.NoArgs,
		long: `Shows on one screen what the zones of a running Caddy do: whether they enforce, and
how many requests a second they admit and refuse, on average of the last ten to
twenty seconds, with those of an hour ago in parentheses. Below come the store, what
was changed at run time, and what is wrong with the config. Columns that no zone
uses are left out. With --json there is more, such as totals and definitions.`,
		run: func(r *remote, _ []string) error {
			var s wire.Status
			if err := r.ask(http.MethodGet, "/throttle/zones", nil, &s); err != nil {
				return err
			}
			if err := r.showZones(s.Zones); err != nil {
				return err
			}
			fmt.Fprintln(&r.out)
			r.showStore(&s.Store)
			for _, z := range s.Zones {
				if z.Share != nil {
					r.showShare(z.Zone, z.Share)
				}
			}
			if err := r.showOverrides(s.Overrides); err != nil {
				return err
			}
			r.showFiles(s.Zones)
			r.showWarnings(s.Warnings)
			return nil
		},
	}.command()
}

// showFiles says which override files are in force, and which are wrong.
func (r *remote) showFiles(zones []wire.ZoneStatus) {
	for _, z := range zones {
		f := z.OverrideFile
		if f == nil {
			continue
		}
		fmt.Fprintf(&r.out, "%s: %s of %s, read %s ago.\n", shown(z.Zone), plural(f.Overrides, "override"), shown(f.File), time.Since(f.Read).Round(time.Second))
		if f.Problem != "" {
			fmt.Fprintf(&r.out, "The file cannot be used as it is now, so these stay: %s\n", accesslog.Printable(f.Problem, 1000))
		}
	}
}

// rate returns how many requests a second were decided so, and an hour ago.
func rateText(z *wire.ZoneStatus, decisions ...string) string {
	sum := func(of map[string]float64) (sum float64) {
		for _, d := range decisions {
			sum += of[d]
		}
		return sum
	}
	now := digits(sum(z.PerSecond))
	if z.HourAgo == nil {
		return now
	}
	return fmt.Sprintf("%s (%s)", now, digits(sum(z.HourAgo)))
}

func modeText(z *wire.ZoneStatus) string {
	mode := z.Mode
	if z.ShadowUntil != nil {
		mode += " for " + left(wire.Span{Until: *z.ShadowUntil})
	}
	if z.Limit != "" {
		mode += ", " + z.Limit
	}
	return mode
}

// slots returns how many slots are in use, and of how many the key that uses most.
func slotsText(z *wire.ZoneStatus) string {
	switch {
	case z.Slots == 0:
		return "-"
	case z.InFlight == z.InFlightMost:
		return fmt.Sprintf("%d/%d", z.InFlight, z.Slots)
	}
	return fmt.Sprintf("%d (%d/%d)", z.InFlight, z.InFlightMost, z.Slots)
}

func waitingText(z *wire.ZoneStatus) string {
	if z.WaitingMost == 0 {
		return "-"
	}
	return fmt.Sprintf("%d/%d", z.Waiting, z.WaitingMost)
}

func (r *remote) showZones(zones []wire.ZoneStatus) error {
	if len(zones) == 0 {
		_, err := fmt.Fprintln(&r.out, "The config has no zones.")
		return err
	}
	t := r.table("ZONE", "MODE", numeric("ADMITTED/S"), numeric("DELAYED/S"), numeric("REFUSED/S"), numeric("SHADOW/S"),
		numeric("BUCKETS"), numeric("WAITING"), numeric("SLOTS"))
	for i := range zones {
		z := &zones[i]
		t.row(shown(z.Zone), modeText(z), rateText(z, "admitted", "delayed", "shadow_delayed"), rateText(z, "delayed", "shadow_delayed"),
			rateText(z, "refused"), rateText(z, "shadow_refused"), fmt.Sprint(z.Buckets), waitingText(z), slotsText(z))
	}
	occurred := func(decisions ...string) bool {
		return slices.ContainsFunc(zones, func(z wire.ZoneStatus) bool {
			return slices.ContainsFunc(decisions, func(d string) bool { return z.Total[d] > 0 })
		})
	}
	t.keep(true, true, true, occurred("delayed", "shadow_delayed"), true, occurred("shadow_refused"), true,
		slices.ContainsFunc(zones, func(z wire.ZoneStatus) bool { return z.WaitingMost > 0 }),
		slices.ContainsFunc(zones, func(z wire.ZoneStatus) bool { return z.Slots > 0 }))
	err := t.Flush()
	for _, z := range zones {
		r.showGroup(z.Zone, z.Group)
	}
	return err
}

// showGroup says what the figures of a zone in shadow mean.
func (r *remote) showGroup(zone, group string) {
	if group != "" {
		fmt.Fprintf(&r.out, "%s in shadow: %s\n", shown(zone), shown(group))
	}
}

// showGroups does so for the zones of buckets.
func (r *remote) showGroups(buckets []wire.Bucket) {
	for i, b := range buckets {
		if !slices.ContainsFunc(buckets[:i], func(before wire.Bucket) bool { return before.Zone == b.Zone && before.Shadow == b.Shadow }) {
			r.showGroup(b.Zone, b.Group)
		}
	}
}

func (r *remote) showStore(s *wire.StoreStatus) {
	part := ""
	if s.Shards > 1 {
		part = fmt.Sprintf(" in %d of %d shards", s.ShardsDown, s.Shards)
	}
	switch {
	case s.Down && s.Since != nil:
		fmt.Fprintf(&r.out, "The store %s is DOWN%s for %v: %s\n", shown(s.Name), part, time.Since(*s.Since).Round(time.Second), accesslog.Printable(s.Why, 200))
	case s.Down:
		fmt.Fprintf(&r.out, "The store %s is DOWN%s.\n", shown(s.Name), part)
	case s.Name == "memory":
	case s.Failing:
		fmt.Fprintf(&r.out, "The store %s is FAILING: %s calls/s of %s ms, %s errors/s.\n", shown(s.Name), digits(s.Calls), digits(1000*s.Took), digits(s.Failed))
	case s.Calls == 0:
		fmt.Fprintf(&r.out, "The store %s is up.\n", shown(s.Name))
	default:
		fmt.Fprintf(&r.out, "The store %s is up: %s calls/s of %s ms, %s errors/s.\n", shown(s.Name), digits(s.Calls), digits(1000*s.Took), digits(s.Failed))
	}
	if s.MaxBuckets > 0 {
		fmt.Fprintf(&r.out, "Memory holds %d of at most %d buckets. %d were dropped before they were empty.\n", s.Buckets, s.MaxBuckets, s.Evictions)
	}
}

// shownWarnings leave room for the rest on one screen.
const shownWarnings = 5

func (r *remote) showWarnings(warnings []wire.Warning) {
	for i, w := range warnings {
		if i == shownWarnings {
			fmt.Fprintf(&r.out, "There are %d more warnings: see --json.\n", len(warnings)-i)
			return
		}
		var details []string
		for _, name := range slices.Sorted(maps.Keys(w.Details)) {
			details = append(details, fmt.Sprintf("%s %v", name, w.Details[name]))
		}
		text := "Warning"
		if len(details) > 0 {
			text += " (" + strings.Join(details, ", ") + ")"
		}
		fmt.Fprintf(&r.out, "%s: %s\n", accesslog.Printable(text, 200), accesslog.Printable(w.Text, 400))
	}
}

func (r *remote) showOverrides(o wire.Overrides) error {
	if len(o.Shadows)+len(o.Bans)+len(o.Limits) == 0 {
		fmt.Fprintln(&r.out, "Nothing was changed at run time.")
		return nil
	}
	t := r.table("CHANGE", "OF", "LEFT", "NOTE")
	for _, s := range o.Shadows {
		t.row("shadow", cmp.Or(shown(s.Zone), "all zones and bans"), left(s.Span), shown(s.Note))
	}
	for _, b := range o.Bans {
		t.row("ban", b.Network.String(), left(b.Span), shown(b.Note))
	}
	for _, l := range o.Limits {
		of := l.Zone
		if l.Key != "" {
			of += "/" + l.Key
		}
		t.row("limit "+shown(l.Text), shown(of), left(l.Span), shown(l.Note))
	}
	return t.Flush()
}

func topCommand() *cobra.Command {
	var in wire.TopQuery
	return remoteCommand{
		use: "top [ZONE]", short: "Shows who sends most and who is refused most", args: cobra.MaximumNArgs(1),
		long: `Shows which keys sent most requests and which were refused most in about the last
minute, in each zone. Refusals are counted one by one. Above a hundred requests a
second, those that are let in are estimated from a sample.`,
		example: `  caddy throttle top
  caddy throttle top login --by /24`,
		flags: func(cmd *cobra.Command) {
			cmd.Flags().StringVar(&in.By, "by", "", "Count by ip, /24 or /16; for IPv6 these are /64, /48 and /32. Default: by the keys of the zones")
		},
		run: func(r *remote, args []string) error {
			if len(args) == 1 {
				in.Zone = args[0]
			}
			var s wire.Top
			if err := r.ask(http.MethodPost, "/throttle/top", in, &s); err != nil {
				return err
			}
			for i, z := range s.Zones {
				if i > 0 {
					fmt.Fprintln(&r.out)
				}
				if z.Requests == 0 {
					fmt.Fprintf(&r.out, "%s: no requests in the last minute\n", shown(z.Zone))
					continue
				}
				how, refused := refusals(&z)
				fmt.Fprintf(&r.out, "%s%s: %s in the last %.0f s, %d %s\n", shown(z.Zone), how, plural(z.Requests, "request"), max(1, z.Seconds), z.Refused, refused)
				t := r.table(numeric("REQUESTS"), numeric("REFUSED"), "KEY")
				for _, k := range sendersOf(z) {
					t.row(fmt.Sprint(k.Admitted+k.Refused), fmt.Sprint(k.Refused), shown(k.Key))
				}
				if err := t.Flush(); err != nil {
					return err
				}
			}
			return nil
		},
	}.command()
}

// refusals says what became of the requests that count as refused.
func refusals(z *wire.TopZone) (how, refused string) {
	switch z.Mode {
	case "", "enforcing":
		return "", "refused"
	case "shadow":
		return " (shadow, " + shown(z.Group) + ")", "would have been refused"
	}
	return " (" + shown(z.Mode) + ", the rest in shadow, " + shown(z.Group) + ")", "refused, or would have been"
}

// shownSenders is how many lines a zone has in top, for each of the two lists.
const shownSenders = 10

// sendersOf merges both lists: first the busiest, then those that are refused most and
// are not among them.
func sendersOf(z wire.TopZone) []wire.TopKey {
	senders := slices.Clone(z.Busiest[:min(shownSenders, len(z.Busiest))])
	for _, k := range z.Denied[:min(shownSenders, len(z.Denied))] {
		if !slices.ContainsFunc(senders, func(other wire.TopKey) bool { return other.Key == k.Key }) {
			senders = append(senders, k)
		}
	}
	return senders
}

// rule says which limit the bucket has, and where that comes from.
func ruleText(b *wire.Bucket) string {
	switch b.By {
	case "run_time":
		return b.Rule + " by caddy throttle limit: " + shown(b.From)
	case "override", "override_file":
		return b.Rule + " by " + shown(b.From)
	}
	if b.Share {
		return b.Rule + " to a share: the store is down"
	}
	return b.Rule
}

// measures returns the cost of a request, and the level and capacity of its bucket. A
// zone of slots, or a rule without a bucket, has none.
func measures(cost, level, capacity float64) (c, l, of string) {
	switch {
	case capacity > 0:
		return digits(cost), digits(level), digits(capacity)
	case cost > 0:
		return digits(cost), "-", "-"
	}
	return "-", "-", "-"
}

// showBuckets writes a table of buckets.
func (r *remote) showBuckets(buckets []wire.Bucket) error {
	t := r.table("ZONE", "KEY", numeric("LEVEL"), numeric("OF"), numeric("FULL"), numeric("BLOCKED FOR"), numeric("EMPTY IN"), "RULE")
	for _, b := range buckets {
		zone := shown(b.Zone)
		if b.Shadow {
			zone += " (shadow)"
		}
		full := fmt.Sprintf("%.0f%%", 100*b.Fraction)
		if b.Capacity == 0 {
			full = "-"
		}
		_, level, capacity := measures(0, b.Level, b.Capacity)
		t.row(zone, shown(b.Key), level, capacity, full, seconds(b.Blocked), seconds(b.EmptyIn), ruleText(&b))
	}
	err := t.Flush()
	r.showGroups(buckets)
	return err
}

// showRefusal writes what was refused under a support code.
func (r *remote) showRefusal(p *wire.PastRefusal) error {
	ago := max(0, time.Since(p.At)).Round(time.Second)
	fmt.Fprintf(&r.out, "Refused %s ago, at %s:\n", ago, p.At.Local().Format(time.DateTime))
	t := r.table("CODE", "ZONE", "KEY", "REASON", numeric("COST"), numeric("LEVEL"), numeric("OF"), numeric("WAIT"), numeric("BLOCKED FOR"))
	cost, level, capacity := measures(p.Cost, p.Level, p.Capacity)
	t.row(p.Code, shown(p.Zone), shown(p.Key), p.Reason, cost, level, capacity, seconds(p.Wait), seconds(p.Blocked))
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(&r.out, "\nNow:")
	return nil
}

// showUnknownCode says that a support code is unknown, if the text looks like one.
func (r *remote) showUnknownCode(text string) (isCode bool) {
	if _, isCode = supportcode.Parse(text); isCode {
		fmt.Fprintln(&r.out, "No refusal with this support code is known here. Each Caddy remembers its last 10,000, until it stops; the access log has older ones.")
	}
	return isCode
}

// showShadows says which switches keep a client from being refused.
func (r *remote) showShadows(shadows []wire.Shadow) {
	for _, s := range shadows {
		what := "Everything is in shadow by caddy throttle shadow --all: nothing is refused, and bans do not hold."
		if s.Zone != "" {
			what = fmt.Sprintf("The zone %s is in shadow by caddy throttle shadow: it refuses nothing.", shown(s.Zone))
		}
		fmt.Fprintf(&r.out, "%s Left: %s. %s\n", what, left(s.Span), shown(s.Note))
	}
}

// showPartial says that a search did not find everything.
func (r *remote) showPartial(complete bool, problem string) {
	if !complete {
		fmt.Fprintln(&r.out, "The search did not reach the end: there may be more.", accesslog.Printable(problem, 1000))
	}
}

// unlistedMeans says what becomes of requests with a key that no override lists, by
// the policy.
var unlistedMeans = map[string]string{
	"client_ip": "its requests are charged to the client's address. Ask why with that.",
	"share":     "its requests are charged to the bucket @share, with those of all such keys.",
	"skip":      "the zone does not charge its requests.",
	"refuse":    "the zone refuses its requests, with the reason unlisted_key.",
}

func whyCommand() *cobra.Command {
	var zone string
	return remoteCommand{
		use: "why ADDRESS|KEY|CODE", short: "Shows why a client is refused", args: cobra.ExactArgs(1),
		long: `Shows the buckets of a client in all zones: how full they are, how much of a block
is left, and which override decides. It changes nothing. Give an address, the name
of an account, a plain API key, a key as the access log shows it, or the support
code that a refused visitor reads from the page. For a code, it also shows what was
refused then.`,
		example: `  caddy throttle why 203.0.113.7
  caddy throttle why 7K2M-Q8XD`,
		flags: func(cmd *cobra.Command) { cmd.Flags().StringVar(&zone, "zone", "", "Look in one zone alone") },
		run: func(r *remote, args []string) error {
			var s wire.Why
			if err := r.ask(http.MethodPost, "/throttle/why", wire.ClientQuery{Client: args[0], Zone: zone}, &s); err != nil {
				return err
			}
			code := false
			if s.Refusal == nil {
				code = r.showUnknownCode(args[0])
			} else if err := r.showRefusal(s.Refusal); err != nil {
				return err
			}
			if s.Ban != nil {
				fmt.Fprintf(&r.out, "A ban of %s holds, and lasts: %s. %s\n", s.Ban.Network, left(s.Ban.Span), shown(s.Ban.Note))
			}
			r.showShadows(s.Shadows)
			for _, u := range s.Unlisted {
				fmt.Fprintf(&r.out, "%s: no override lists this key, so %s\n", shown(u.Zone), unlistedMeans[u.Policy])
			}
			switch {
			case len(s.Buckets) == 0 && code:
			case len(s.Buckets) == 0:
				fmt.Fprintln(&r.out, "No bucket is this client's. A zone with a key for all clients, as with share, has none of one client: see caddy throttle top --by ip.")
			default:
				if err := r.showBuckets(s.Buckets); err != nil {
					return err
				}
			}
			r.showPartial(s.Complete, s.Problem)
			return nil
		},
	}.command()
}

func bucketsCommand() *cobra.Command {
	in := wire.BucketsQuery{Sort: "level", Limit: 20}
	return remoteCommand{
		use: "buckets ZONE", short: "Lists the fullest buckets of a zone", args: cobra.ExactArgs(1),
		long: `Lists buckets of a zone that are not empty, the fullest first. Blocked ones are always
among them. In Redis, this goes through all keys of the database.

A script that wants all of them asks for pages: --sort none gives about --limit
buckets and the cursor of the next page.`,
		example: `  caddy throttle buckets login --min-fraction 1
  caddy throttle buckets pages --prefix 203.0.113. --sort key
  caddy throttle buckets pages --sort none --limit 1000 --json`,
		flags: func(cmd *cobra.Command) {
			cmd.Flags().StringVar(&in.Prefix, "prefix", "", "Only keys that begin so")
			cmd.Flags().BoolVar(&in.Shadow, "shadow", false, "The buckets of shadow")
			cmd.Flags().Float64Var(&in.MinFraction, "min-fraction", 0, "Only buckets at least so full, such as 0.5, and blocked ones")
			cmd.Flags().StringVar(&in.Sort, "sort", in.Sort, "The order: level, key or last; or none, for pages")
			cmd.Flags().IntVar(&in.Limit, "limit", in.Limit, "How many to show, up to 1000")
			cmd.Flags().StringVar(&in.Cursor, "cursor", "", "With --sort none: where the page before has ended")
		},
		run: func(r *remote, args []string) error {
			in.Zone = args[0]
			var s wire.Buckets
			if err := r.ask(http.MethodPost, "/throttle/buckets", in, &s); err != nil {
				return err
			}
			if len(s.Buckets) > 0 {
				if err := r.showBuckets(s.Buckets); err != nil {
					return err
				}
			}
			switch {
			case len(s.Buckets) == 0 && s.Next == "" && s.Complete:
				fmt.Fprintln(&r.out, "No bucket matches that is not empty.")
			case s.Next != "":
				fmt.Fprintf(&r.out, "%s. The next page begins at --cursor %s\n", plural(len(s.Buckets), "bucket"), shown(s.Next))
			case in.Sort == wire.Unsorted:
				fmt.Fprintf(&r.out, "%s. There are no more.\n", plural(len(s.Buckets), "bucket"))
			default:
				fmt.Fprintf(&r.out, "%d of %s.\n", len(s.Buckets), plural(s.Matched, "bucket"))
				r.showPartial(s.Complete, "")
			}
			return nil
		},
	}.command()
}

func checkCommand() *cobra.Command {
	in := wire.CheckQuery{Method: http.MethodGet}
	var headers []string
	return remoteCommand{
		use: "check URL", short: "Shows what zones a request would meet", args: cobra.ExactArgs(1),
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
		run: func(r *remote, args []string) error {
			if in.URL = args[0]; in.ClientIP == "" {
				return usageErrorf("want --client, such as --client 203.0.113.7")
			}
			in.Headers = make(map[string]string)
			for _, header := range headers {
				name, value, two := strings.Cut(header, ":")
				if !two {
					return usageErrorf("invalid --header %q: want a name, a colon and a value", header)
				}
				in.Headers[strings.TrimSpace(name)] = strings.TrimSpace(value)
			}
			var s wire.Check
			if err := r.ask(http.MethodPost, "/throttle/check", in, &s); err != nil {
				return err
			}
			switch {
			case s.Exempt:
				fmt.Fprintln(&r.out, "The global options exempt this request.")
				return nil
			case s.Directives == 0:
				fmt.Fprintln(&r.out, "This request comes to no throttle directive: check the host, the port and the matchers.")
				return nil
			case s.Banned:
				fmt.Fprintln(&r.out, "The client is banned, which answers before any zone: see caddy throttle bans.")
			}
			if len(s.Zones) == 0 {
				fmt.Fprintf(&r.out, "It comes to %s, and no zone there would charge it.\n", plural(s.Directives, "throttle directive"))
				return nil
			}
			var buckets []wire.Bucket
			t := r.table("ZONE", "KEY", numeric("COST"), numeric("LEVEL"), numeric("OF"), "VERDICT", "RULE")
			for _, z := range s.Zones {
				verdict := "fits"
				switch {
				case !z.Fits:
					verdict = "refused: " + z.Reason
				case z.Capacity == 0 && z.Rule == "limited":
					verdict = "fits, if a slot is free"
				}
				if z.Shadow && z.Reason != wire.Banned {
					verdict += " (shadow)"
				}
				cost, level, capacity := measures(z.Cost, z.Level, z.Capacity)
				t.row(shown(z.Zone), shown(z.Key), cost, level, capacity, verdict, ruleText(&z.Bucket))
				buckets = append(buckets, z.Bucket)
			}
			err := t.Flush()
			r.showGroups(buckets)
			return err
		},
	}.command()
}

func keyCommand() *cobra.Command {
	return remoteCommand{
		use: "key ZONE VALUE...", short: "Shows the key of the bucket of plain values", args: cobra.MinimumNArgs(2),
		long: `Shows the key that a zone makes of plain values, one for each part of its key: an
address is masked, a name folded, a secret replaced by its digest.`,
		example: `  caddy throttle key login 203.0.113.7
  caddy throttle key api demo-key-of-a-shop`,
		run: func(r *remote, args []string) error {
			var s wire.Key
			if err := r.ask(http.MethodPost, "/throttle/key", wire.KeyQuery{Zone: args[0], Values: args[1:]}, &s); err != nil {
				return err
			}
			_, err := fmt.Fprintln(&r.out, shown(s.Key))
			return err
		},
	}.command()
}

func releaseCommand() *cobra.Command {
	var zone string
	return remoteCommand{
		use: "release ADDRESS|KEY", short: "Lets a client back in at once", args: cobra.ExactArgs(1),
		long: `Empties the buckets of a client in all zones and ends their blocks, in shadow and
in shared stores, too. Give an address, the name of an account, a plain API key, or
a key as the access log shows it. The client starts afresh: if it goes on as before,
it is refused again. Bans stay; see unban.`,
		example: `  caddy throttle release 203.0.113.7
  caddy throttle release alice --zone login`,
		flags: func(cmd *cobra.Command) { cmd.Flags().StringVar(&zone, "zone", "", "Release in one zone alone") },
		run: func(r *remote, args []string) error {
			var s wire.Released
			if err := r.ask(http.MethodPost, "/throttle/release", wire.ClientQuery{Client: args[0], Zone: zone}, &s); err != nil {
				return err
			}
			for _, name := range s.Freed {
				if of, shadow := strings.CutPrefix(name, "~"); shadow {
					name = of + " (shadow)"
				}
				fmt.Fprintln(&r.out, "emptied", shown(name))
			}
			if s.Pending {
				fmt.Fprintln(&r.out, "The store is down: this holds on this Caddy, and the store is told when it is back.")
			} else if len(s.Freed) == 0 {
				fmt.Fprintln(&r.out, "No bucket of this client was in use.")
			}
			if s.Banned {
				fmt.Fprintln(&r.out, "A ban still holds: see caddy throttle bans.")
			}
			if s.Failed != "" {
				return fmt.Errorf("the release ended halfway: %s", accesslog.Printable(s.Failed, 1000))
			}
			r.showPartial(s.Complete, s.Problem)
			return nil
		},
	}.command()
}

// holding are the flags of changes that end by themselves.
type holding struct {
	length, until, note string
}

func (h *holding) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&h.length, "for", "", "How long it holds, such as 30m, 2h or 7d. At most 30d. Default: until this Caddy stops")
	cmd.Flags().StringVar(&h.until, "until", "", "Until when it holds instead, such as 09:00, in local time")
	cmd.Flags().StringVar(&h.note, "note", "", "Why, for those who ask later")
}

// fill checks the flags and completes the input.
func (h *holding) fill(in *wire.Change, now time.Time) error {
	in.Note = h.note
	switch {
	case h.length != "" && h.until != "":
		return usageErrorf("want at most one of --for, such as 30m, and --until, such as 09:00")
	case h.until != "":
		at, err := time.ParseInLocation("15:04", h.until, now.Location())
		if err != nil {
			return usageErrorf("invalid --until %q: want a time such as 09:00", h.until)
		}
		end := time.Date(now.Year(), now.Month(), now.Day(), at.Hour(), at.Minute(), 0, 0, now.Location())
		if !end.After(now) {
			end = end.AddDate(0, 0, 1)
		}
		in.For = caddy.Duration(end.Sub(now))
	case h.length != "":
		length, err := caddy.ParseDuration(h.length)
		if err != nil || length <= 0 {
			return usageErrorf("invalid --for %q: want a duration above 0, such as 30m, 2h or 7d", h.length)
		}
		in.For = caddy.Duration(length)
	}
	return nil
}

// change sends a change, and says until when it holds. Of a ban, the answer names the
// network, as an address may stand for a larger one.
func (r *remote) change(path string, in wire.Change, h *holding, what string) error {
	if err := h.fill(&in, time.Now()); err != nil {
		return err
	}
	var s wire.Ban // or another change, which has no network
	if err := r.ask(http.MethodPost, path, in, &s); err != nil {
		return err
	}
	if s.Network.IsSingleIP() {
		what = s.Network.Addr().String() + what
	} else if s.Network.IsValid() {
		what = s.Network.String() + what
	}
	if s.Until.IsZero() {
		_, err := fmt.Fprintf(&r.out, "%s on this Caddy, until it is restarted or you end that.\n", what)
		return err
	}
	_, err := fmt.Fprintf(&r.out, "%s until %s, on this Caddy, unless it is restarted before.\n", what, s.Until.Local().Format("2006-01-02 15:04:05"))
	return err
}

// end ends a change.
func (r *remote) end(path string, in wire.Change) error {
	var s wire.Ended
	if err := r.ask(http.MethodPost, path, in, &s); err != nil {
		return err
	}
	if !s.Ended {
		return errors.New("there is no such change: see caddy throttle status")
	}
	_, err := fmt.Fprintln(&r.out, "Ended.")
	return err
}

func banCommand() *cobra.Command {
	var h holding
	return remoteCommand{
		use: "ban ADDRESS|CIDR", short: "Refuses a network for a while", args: cobra.ExactArgs(1),
		long: `Refuses all requests of a network at every throttle directive of this Caddy.
Exemptions beat bans. An IPv6 address stands for its /64.`,
		example: `  caddy throttle ban 203.0.113.0/24 --for 2h --note "scraper, ticket 4711"`,
		flags:   h.add,
		run: func(r *remote, args []string) error {
			return r.change("/throttle/ban", wire.Change{Network: args[0]}, &h, " is banned")
		},
	}.command()
}

func unbanCommand() *cobra.Command {
	return remoteCommand{
		use: "unban ADDRESS|CIDR", short: "Ends a ban", args: cobra.ExactArgs(1), long: "Ends the ban of this very network.",
		run: func(r *remote, args []string) error {
			return r.end("/throttle/unban", wire.Change{Network: args[0]})
		},
	}.command()
}

func bansCommand() *cobra.Command {
	return remoteCommand{
		use: "bans", short: "Lists bans and other changes at run time", args: cobra.NoArgs,
		long: "Lists bans, limits and shadow switches that hold, and how long.",
		run: func(r *remote, _ []string) error {
			var o wire.Overrides
			if err := r.ask(http.MethodGet, "/throttle/overrides", nil, &o); err != nil {
				return err
			}
			return r.showOverrides(o)
		},
	}.command()
}

func limitCommand() *cobra.Command {
	var h holding
	return remoteCommand{
		use: "limit ZONE [KEY] LIMIT", short: "Changes the limit of a zone or a key for a while", args: cobra.RangeArgs(2, 4),
		long: `Changes the limit of all keys of a zone, or of one. The limit is a factor such as
x0.5, a capacity and a leak such as 10 1/s, the name of a plan, unlimited, or deny.
It is stronger than the config and its override files. A factor changes the limits of
overrides, too. The capacity stays large enough for the zone's dearest request. Give
the key as the access log shows it, an address, or a plain API key.`,
		example: `  caddy throttle limit pages x0.5 --until 09:00
  caddy throttle limit api demo-key-of-a-shop gold --for 2h
  caddy throttle limit login 203.0.113.7 unlimited --for 2h`,
		flags: h.add,
		run: func(r *remote, args []string) error {
			in, err := limitInput(args)
			if err != nil {
				return err
			}
			of := in.Zone
			if in.Key != "" {
				of += "/" + in.Key
			}
			return r.change("/throttle/limit", in, &h, fmt.Sprintf("%s: %s holds", shown(of), shown(in.Limit)))
		},
	}.command()
}

// limitInput reads a zone, perhaps a key, and a limit of one word or two.
func limitInput(args []string) (in wire.Change, err error) {
	last := len(args) - 1
	if leak := args[last]; last > 1 && strings.Contains(leak, "/") && !strings.Contains(leak, " ") {
		last-- // the capacity is a word of its own
	}
	if last > 2 {
		return in, usageErrorf("unexpected %q: want caddy throttle limit ZONE [KEY] LIMIT", args[2])
	}
	return wire.Change{Zone: args[0], Key: strings.Join(args[1:last], ""), Limit: strings.Join(args[last:], " ")}, nil
}

func unlimitCommand() *cobra.Command {
	return remoteCommand{
		use: "unlimit ZONE [KEY]", short: "Ends a changed limit", args: cobra.RangeArgs(1, 2), long: "Ends what limit has changed: the limit of a zone, or that of one key.",
		run: func(r *remote, args []string) error {
			return r.end("/throttle/unlimit", wire.Change{Zone: args[0], Key: strings.Join(args[1:], "")})
		},
	}.command()
}

// zoneOrAll returns the zone that is given, or "" for --all.
func zoneOrAll(args []string, all bool) (string, error) {
	if all == (len(args) == 1) {
		return "", usageErrorf("want a zone, or --all")
	}
	return strings.Join(args, ""), nil
}

func shadowCommand() *cobra.Command {
	var h holding
	var all bool
	return remoteCommand{
		use: "shadow [ZONE]", short: "Lets a zone, or everything, refuse nobody for a while", args: cobra.MaximumNArgs(1),
		long: `Switches a zone to shadow: it decides and counts, and refuses nobody. With --all,
no zone refuses anybody, and bans do not hold. Requests that wait already are let
through, unless they also belong to a zone that still makes requests wait.`,
		example: `  caddy throttle shadow --all --for 30m`,
		flags: func(cmd *cobra.Command) {
			h.add(cmd)
			cmd.Flags().BoolVar(&all, "all", false, "All zones, and bans")
		},
		run: func(r *remote, args []string) error {
			zone, err := zoneOrAll(args, all)
			if err != nil {
				return err
			}
			return r.change("/throttle/shadow", wire.Change{Zone: zone}, &h, cmp.Or(shown(zone), "Everything")+" is in shadow")
		},
	}.command()
}

func unshadowCommand() *cobra.Command {
	var all bool
	return remoteCommand{
		use: "unshadow [ZONE]", short: "Ends shadow", args: cobra.MaximumNArgs(1), long: "Ends what shadow has switched.",
		flags: func(cmd *cobra.Command) { cmd.Flags().BoolVar(&all, "all", false, "What shadow --all has switched") },
		run: func(r *remote, args []string) error {
			zone, err := zoneOrAll(args, all)
			if err != nil {
				return err
			}
			return r.end("/throttle/unshadow", wire.Change{Zone: zone})
		},
	}.command()
}

func revokeDevicesCommand() *cobra.Command {
	return remoteCommand{
		use: "revoke-devices", short: "Trusts no device any more", args: cobra.NoArgs,
		long: `Replaces the keys that the cookies of trust_devices and the passes of share are signed
with. No device is trusted any more until somebody logs in with it again, and all
passes are void: on this Caddy at once, on others that share its storage within ten
minutes.`,
		run: func(r *remote, _ []string) error {
			var done wire.Revoked
			if err := r.ask(http.MethodPost, "/throttle/revoke", struct{}{}, &done); err != nil {
				return err
			}
			_, err := fmt.Fprintln(&r.out, "No device is trusted any more, and no pass is valid.")
			return err
		},
	}.command()
}
