package cli

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize/english"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/command"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
)

func (c *client) showStatus(s *wire.Status) {
	c.showZones(s.Zones)
	if len(s.InFlight) > 0 {
		c.printf("\n")
		writeTable(c, "IN FLIGHT|MODE|ADMITTED/S|REFUSED/S|SHADOW/S|RUNNING|WAITING", s.InFlight, func(f *wire.InFlightStatus) []any {
			return append(decidedCells(f.Name, "", &f.Decided), ofMost(f.Running, f.Slots), ofMost(f.Waiting, f.Queue))
		})
	}
	c.printf("\n")
	c.showStore(&s.Store)
	c.showChanges(s)
	c.showOverrides(&s.Overrides)
	c.showFacts(s.Zones)
	for _, w := range s.Warnings {
		var details []string
		for _, name := range slices.Sorted(maps.Keys(w.Details)) {
			details = append(details, fmt.Sprintf(" (%s %v)", name, w.Details[name]))
		}
		c.printf("Warning%s: %s\n", command.Printable(strings.Join(details, ""), 200), command.Printable(w.Text, 400))
	}
}

// longestError leaves room for the SQL that PostgreSQL's owner must run, at the end of an error.
const longestError = 1000

// showChanges says how this Caddy and the store agree on changes at run time.
func (c *client) showChanges(of *wire.Status) {
	s := of.Changes
	if s == nil {
		return
	}
	if s.Error != "" {
		c.printf("Other Caddys are not told of changes now: %s\n", command.Printable(s.Error, longestError))
	}
	if s.Pending > 0 {
		c.printf("The store has not been told of %s yet.\n", english.Plural(s.Pending, "change", ""))
	}
}

func (c *client) showZones(zones []wire.ZoneStatus) {
	if len(zones) == 0 {
		c.printf("The config has no zones.\n")
		return
	}
	writeTable(c, "ZONE|MODE|ADMITTED/S|REFUSED/S|SHADOW/S|BUCKETS|WAITING", zones, func(z *wire.ZoneStatus) []any {
		return append(decidedCells(z.Zone, z.Limit, &z.Decided), z.Buckets, ofMost(z.Waiting, z.WaitingMost))
	})
	if slices.ContainsFunc(zones, func(z wire.ZoneStatus) bool { return z.Mode != "enforcing" }) {
		c.printf(inShadow)
	}
}

// decidedCells returns the name and the mode of a zone or an in_flight, and how many requests a
// second were admitted, refused, and refused in shadow.
func decidedCells(name, limit string, d *wire.Decided) []any {
	mode, now, shadow := d.Mode, d.PerSecond, ""
	if limit != "" {
		mode += ", " + sanitize(limit)
	}
	if d.ShadowUntil != nil {
		mode += " for " + remaining(*d.ShadowUntil)
	}
	if d.Mode != "enforcing" {
		shadow = digits(now["shadow_refused"])
	}
	return []any{sanitize(name), mode, digits(now["admitted"] + now["delayed"] + now["shadow_delayed"]), digits(now["refused"]), shadow}
}

// ofMost returns how many there are of how many there may be, or nothing if there may be none.
func ofMost(n, most int) string {
	if most == 0 {
		return ""
	}
	return fmt.Sprintf("%d/%d", n, most)
}

// showFacts shows what the zones have met since the config was loaded.
func (c *client) showFacts(zones []wire.ZoneStatus) {
	if len(zones) == 0 {
		return
	}
	c.printf("\nSince the config was loaded, %s ago:\n", elapsed(zones[0].Facts.Since))
	writeTable(c, "ZONE|REQUESTS|ASKED|EXEMPT|NO KEY|KEYS|NETWORKS|CHARGED|REFUNDED", zones, func(z *wire.ZoneStatus) []any {
		f := &z.Facts
		return []any{sanitize(z.Zone), f.Requests, f.Asked, unlessZero(f.Exempt), unlessZero(f.Keyless), f.Keys, f.Networks, unlessZero(f.Charged), unlessZero(f.Refunded)}
	})
	for i := range zones {
		if zones[i].Facts.Responses != nil {
			c.printf("%s: %s.\n", sanitize(zones[i].Zone), refundText(&zones[i]))
		}
	}
	c.printf("\n")
}

// refundText says what a zone that refunds has learned from responses.
func refundText(z *wire.ZoneStatus) string {
	f := &z.Facts
	said, line := []string(nil), fmt.Sprintf("kept %d of %d", f.Charged, f.Charged+f.Refunded)
	for _, status := range slices.Sorted(maps.Keys(f.Responses)) {
		said = append(said, fmt.Sprintf("%d x %d", status, f.Responses[status]))
	}
	if len(said) > 0 {
		line += ": " + strings.Join(said, ", ")
	}
	if f.Devices != nil {
		line += "; gave " + english.Plural(int(*f.Devices), "device cookie", "")
	}
	return line
}

// unlessZero returns a number, or nothing.
func unlessZero[Number uint64 | float64](n Number) string {
	if n == 0 {
		return ""
	}
	return digits(float64(n))
}

func (c *client) showStore(s *wire.StoreStatus) {
	name := sanitize(s.Name)
	switch {
	case s.Down && s.Since != nil:
		c.printf("The store %s is DOWN for %v: %s\n", name, elapsed(*s.Since), command.Printable(s.Why, longestError))
	case s.Failing:
		c.printf("The store %s is FAILING.\n", name)
	case name != "memory":
		c.printf("The store %s is up.\n", name)
	}
	c.printf("Memory holds %d of at most %d buckets. %d were dropped before they were empty.\n", s.Buckets, s.MaxBuckets, s.Evictions)
	if s.SnapshotFailing {
		c.printf("The snapshot cannot be written, so a restart takes the buckets back by %.0f s: see Caddy's log.\n", s.SnapshotAge)
	}
	if name != "memory" {
		c.printf("The requests and buckets above are this Caddy's alone.\n")
	}
}

func (c *client) showTop(s *wire.Top) {
	if len(s.Zones) == 0 {
		c.showZones(nil) // which says so
	}
	for i := range s.Zones {
		c.showSenders(&s.Zones[i])
	}
	if s.Shared {
		c.printf("These are this Caddy's requests alone.\n")
	}
}

// showSenders shows first the busiest, then those that are refused most and are not among them.
func (c *client) showSenders(z *wire.TopZone) {
	refused := "refused"
	if z.Mode != "enforcing" {
		refused = "refused, or would have been"
	}
	c.printf("%s (%s): %d %s in the last %.0f s, %d %s\n", sanitize(z.Zone), z.Mode, z.Requests, english.PluralWord(z.Requests, "request", ""), max(1, z.Seconds), z.Refused, refused)
	if z.Requests == 0 {
		return
	}
	others := slices.DeleteFunc(slices.Clone(z.Denied), func(k wire.TopKey) bool {
		return slices.ContainsFunc(z.Busiest, func(b wire.TopKey) bool { return b.Name == k.Name })
	})
	writeTable(c, "REQUESTS|REFUSED|KEY", slices.Concat(z.Busiest, others), func(k *wire.TopKey) []any {
		about := ""
		if k.Sampled {
			about = "~"
		}
		return []any{about + fmt.Sprint(k.Requests), about + fmt.Sprint(k.Refused), shortKey(cmp.Or(k.Network, k.Name))}
	})
	c.printf("\n")
}

func (c *client) showWhy(s *wire.Why) {
	if s.Refusal != nil {
		c.showRefusals("Refused then:", []wire.PastRefusal{*s.Refusal})
	} else if s.Code && !s.Refused && len(s.Buckets)+len(s.Unlisted) == 0 {
		c.printf("This Caddy remembers no refusal with the support code %s, and no zone has it as a key in use: ask the Caddy that gave the code, or look for it in the access logs.\n", sanitize(c.of.Client))
		return
	} else if s.Code {
		c.printf("No refusal here has the support code %s. As a key:\n", sanitize(c.of.Client))
	}
	if s.Ban != nil {
		c.printf("A ban of %s holds. %s\n", s.Ban.Network, changeText(s.Ban))
	}
	for i := range s.Shadows {
		what := "Everything is in shadow by caddy throttle shadow --all: nothing is refused, and bans do not hold."
		if zone := s.Shadows[i].Zone; zone != "" {
			what = fmt.Sprintf("The zone %s is in shadow by caddy throttle shadow: it refuses nothing.", sanitize(zone))
		}
		c.printf("%s %s\n", what, changeText(&s.Shadows[i]))
	}
	for _, u := range s.Unlisted {
		c.printf("%s: no override lists this key, so %s\n", sanitize(u.Zone), unlistedMeans[u.Policy])
	}
	if s.Local {
		c.printf("The store is failing: this is what this Caddy knows, and its share of the limits holds.\n")
	}
	if len(s.Refusals) > 0 {
		c.showRefusals("Refused lately to this address:", s.Refusals)
	}
	switch {
	case s.Refused:
		c.printf("It is refused now.\n")
	case s.Refusal != nil && s.Refusal.Key == "":
		c.printf("The request had no key, so no bucket is its own.\n")
		return
	default:
		c.printf("No zone refuses a request of cost 1 now.\n")
		if len(s.Refusals) > 0 {
			c.printf("That is by the address: other keys above may still be refused, so ask for these, too.\n")
		}
	}
	if len(s.Buckets) > 0 {
		c.showBuckets(s.Buckets)
	} else {
		c.printf("No bucket of this client is in use. A zone with a key for all clients has none of one client: see caddy throttle top --by ip.\n")
	}
	if !s.Complete {
		c.printf("The search did not reach the end: there may be more. %s\n", command.Printable(s.Problem, 1000))
	}
}

// showRefusals lists what was refused with support codes.
func (c *client) showRefusals(what string, refusals []wire.PastRefusal) {
	c.printf("%s\n", what)
	writeTable(c, "CODE|AT|ZONE|KEY|REASON|COST|LEVEL|OF|WAIT|BLOCKED FOR", refusals, func(p *wire.PastRefusal) []any {
		return []any{
			p.Code, since(p.At), sanitize(p.Zone), shortKey(cmp.Or(p.Network, p.Key)), p.Reason,
			unlessZero(p.Cost), unlessZero(p.Level), unlessZero(p.Capacity), wholeSeconds(p.Wait), wholeSeconds(p.Blocked),
		}
	})
	c.printf("\nNow:\n")
}

// changeText says how long a change still holds, and who has made it and why.
func changeText(o *wire.Override) string {
	by := ""
	if o.By != "" {
		by = ", by " + sanitize(o.By)
	}
	return strings.TrimSpace(fmt.Sprintf("Left: %s%s. %s", remaining(o.Until), by, sanitize(o.Note)))
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
func (c *client) showBuckets(buckets []wire.Bucket) {
	writeTable(c, "ZONE|KEY|LEVEL|OF|FULL|EMPTY IN|VERDICT|RULE", buckets, func(b *wire.Bucket) []any {
		zone, full, level, capacity := sanitize(b.Zone), "", "", ""
		if b.Shadow {
			zone += " (shadow)"
		}
		if b.Capacity > 0 {
			full, level, capacity = fmt.Sprintf("%.0f%%", 100*b.Fraction), digits(b.Level), digits(b.Capacity)
		}
		return []any{zone, shortKey(cmp.Or(b.Network, b.Key)), level, capacity, full, wholeSeconds(b.EmptyIn), verdictText(&b.Verdict), ruleText(b)}
	})
	if slices.ContainsFunc(buckets, func(b wire.Bucket) bool { return b.Shadow }) {
		c.printf(inShadow)
	}
}

// ruleText says which limit a bucket has, and where that comes from.
func ruleText(b *wire.Bucket) string {
	switch {
	case b.By == "run_time":
		return "limit " + sanitize(b.From)
	case b.By == "override":
		return b.Rule + " by " + sanitize(b.From)
	case b.Share:
		return "store down: a share"
	}
	return b.Rule
}

// verdictText says what becomes of a request now.
func verdictText(v *wire.Verdict) string {
	if v.Reason == "" {
		return "fits"
	}
	text := "refused: " + v.Reason
	if v.For > 0 {
		text += ", " + wholeSeconds(v.For)
	}
	if !v.Refused() {
		text += " (shadow)"
	}
	return text
}

// inShadow says what the figures of zones in shadow mean.
const inShadow = "Shadow counts as if all zones of the same throttle were enforced.\n"

// writeTable writes a table with a row for each of all, in which - stands for an empty cell. Texts
// that came from clients must be sanitized.
func writeTable[T any](c *client, head string, all []T, cells func(*T) []any) {
	t := tabwriter.NewWriter(c, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, strings.ReplaceAll(head, "|", "\t")) // the client keeps errors
	for i := range all {
		row := cells(&all[i])
		for n, cell := range row {
			row[n] = cmp.Or(fmt.Sprint(cell), "-")
		}
		_, _ = fmt.Fprintf(t, strings.Repeat("%s\t", len(row)-1)+"%s\n", row...)
	}
	_ = t.Flush()
}

// sanitize returns text from clients as a terminal may show it.
func sanitize(from string) string { return command.Printable(from, 100) }

// shortKey is sanitize for keys in tables, where a long last part is cut: what follows a digest tells
// buckets apart, and so do 11 digits of another digest. why and release accept them so; limit wants the
// whole one, from --json.
func shortKey(key string) string {
	return command.Printable(key, min(100, max(40, strings.LastIndexByte(key, '/')+20)))
}

// asShown returns what a text from a terminal stands for, if the terminal showed it escaped. Names of
// buckets have no control bytes, so the \a of CORP\alice is none.
func asShown(shown string) string {
	text, err := strconv.Unquote(`"` + strings.ReplaceAll(shown, `"`, `\"`) + `"`)
	if err != nil || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' }) {
		return shown
	}
	return text
}

// printableLine is what a terminal may show of a message that quotes what it complains
// of: without a second escape of the quotes in it.
func printableLine(message string) string {
	return strings.ReplaceAll(command.Printable(message, 2000), `\\`, `\`)
}

// digits returns a number with few digits.
func digits(n float64) string {
	if math.Abs(n) >= 100 {
		return fmt.Sprintf("%.0f", n)
	}
	return fmt.Sprintf("%.3g", n)
}

// wholeSeconds returns a duration in seconds for people.
func wholeSeconds(s float64) string {
	if s == 0 {
		return "-"
	}
	return lengthText(time.Duration(math.Ceil(s) * float64(time.Second)))
}

// lengthText returns a duration for people, who count long ones in days.
func lengthText(d time.Duration) string {
	if days := d / (24 * time.Hour); days > 1 {
		return fmt.Sprintf("%dd%dh", days, int(d.Hours())%24)
	}
	return d.String()
}

// elapsed returns how long ago something was.
func elapsed(at time.Time) time.Duration { return max(0, time.Since(at)).Round(time.Second) }

// remaining returns how long a span still lasts.
func remaining(until time.Time) string {
	return lengthText(max(0, time.Until(until)).Round(time.Second))
}

// since returns when something was, in local time.
func since(at time.Time) string { return at.Local().Format("01-02 15:04:05") }
