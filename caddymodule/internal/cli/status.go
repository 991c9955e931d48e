package cli

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/changes"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/text"
)

func statusCommand() command {
	return command{
		use: "status", short: "Shows what the zones of a running Caddy do",
		long: `Shows on one screen what the zones of a running Caddy do: whether they enforce, and
how many requests a second they admit and refuse, on average of the last ten to
twenty seconds, with those of an hour ago in parentheses. Below come the store, what
was changed at run time, what each zone has met since the config was loaded, and what
is wrong with the config. Columns that no zone uses are left out. With --json there is more, such as totals.`,
		run: func(c *adminClient, _ []string) error { return show(c, "zones", nil, c.showStatus) },
	}
}

// showChanges says how this Caddy and the store agree on changes at run time.
func (c *adminClient) showChanges(s *changes.State) {
	if s == nil {
		return
	}
	if s.Error != "" {
		c.printf("Other Caddys are not told of changes now: %s\n", text.Printable(s.Error, 200))
	}
	if s.Pending > 0 {
		c.printf("The store has not been told of %s yet.\n", text.Plural(s.Pending, "change"))
	}
	if s.Skipped > 0 {
		c.printf("The store has %d entries that are no change this Caddy can read: see the log of Caddy.\n", s.Skipped)
	}
}

func (c *adminClient) showStatus(s *wire.Status) {
	c.showZones(s.Zones)
	c.showInFlight(s)
	c.say("")
	c.showStore(&s.Store)
	if s.Changes != nil {
		c.say("The requests and buckets above are this Caddy's alone.")
	}
	c.showChanges(s.Changes)
	c.showOverrides(&s.Overrides)
	c.showFacts(s.Zones)
	c.showWarnings(s)
}

func (c *adminClient) showZones(zones []wire.ZoneStatus) {
	if len(zones) == 0 {
		c.say("The config has no zones.")
		return
	}
	t := newTable("ZONE", "MODE", numeric("ADMITTED/S"), numeric("DELAYED/S"), numeric("REFUSED/S"), numeric("SHADOW/S"),
		numeric("BUCKETS"), numeric("WAITING"))
	for i := range zones {
		z := &zones[i]
		mode := modeText(&z.Decided)
		if z.Limit != "" {
			mode += ", " + z.Limit
		}
		t.row(append(append([]string{sanitize(z.Zone), mode}, rateTexts(&z.Decided)...), fmt.Sprint(z.Buckets), ofMost(z.Waiting, z.WaitingMost))...)
	}
	t.print(c)
	if slices.ContainsFunc(zones, func(z wire.ZoneStatus) bool { return z.Total["shadow_refused"] > 0 }) {
		c.printf(inShadow)
	}
}

// showFacts shows what the zones have met since the config was loaded.
func (c *adminClient) showFacts(zones []wire.ZoneStatus) {
	if len(zones) == 0 {
		return
	}
	c.printf("\nSince the config was loaded, %s ago:\n", elapsed(zones[0].Facts.Since))
	t := newTable("ZONE", numeric("REQUESTS"), numeric("ASKED"), numeric("EXEMPT"), numeric("NO KEY"), numeric("KEYS"), numeric("NETWORKS"), numeric("CHARGED"), numeric("REFUNDED"))
	for i := range zones {
		f := &zones[i].Facts
		t.row(sanitize(zones[i].Zone), fmt.Sprint(f.Requests), fmt.Sprint(f.Asked), unlessZero(f.Exempt), unlessZero(f.Keyless),
			fmt.Sprint(f.Keys), fmt.Sprint(f.Networks), unlessZero(f.Charged), unlessZero(f.Refunded))
	}
	t.print(c)
	for i := range zones {
		if line := refundText(&zones[i]); line != "" {
			c.printf("%s: %s.\n", sanitize(zones[i].Zone), line)
		}
	}
	c.say("")
}

// refundText says what a zone that refunds has learned from responses, or nothing of another.
func refundText(z *wire.ZoneStatus) string {
	f := &z.Facts
	if f.Responses == nil {
		return ""
	}
	var said []string
	for _, status := range slices.Sorted(maps.Keys(f.Responses)) {
		said = append(said, fmt.Sprintf("%d x %d", status, f.Responses[status]))
	}
	line := fmt.Sprintf("kept %d of %d", f.Charged, f.Charged+f.Refunded)
	if len(said) > 0 {
		line += ": " + strings.Join(said, ", ")
	}
	if f.Devices != nil {
		line += "; gave " + text.Plural(int(*f.Devices), "device cookie")
	}
	return line
}

// unlessZero returns a number, or nothing.
func unlessZero[N int | int64 | uint64](n N) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}

func modeText(d *wire.Decided) string {
	if d.ShadowUntil != nil {
		return d.Mode + " for " + remaining(*d.ShadowUntil)
	}
	return d.Mode
}

// rateTexts returns how many requests a second were admitted, delayed, refused, and refused in
// shadow. What has never been is left out.
func rateTexts(d *wire.Decided) []string {
	delayed, shadow := "", ""
	if d.Total["delayed"]+d.Total["shadow_delayed"] > 0 {
		delayed = rateText(d, "delayed", "shadow_delayed")
	}
	if d.Total["shadow_refused"] > 0 {
		shadow = rateText(d, "shadow_refused")
	}
	return []string{rateText(d, "admitted", "delayed", "shadow_delayed"), delayed, rateText(d, "refused"), shadow}
}

// rateText returns how many requests a second were decided so, and an hour ago.
func rateText(d *wire.Decided, decisions ...string) string {
	sum := func(of map[string]float64) (sum float64) {
		for _, decision := range decisions {
			sum += of[decision]
		}
		return sum
	}
	now := digits(sum(d.PerSecond))
	if d.HourAgo == nil {
		return now
	}
	return fmt.Sprintf("%s (%s)", now, digits(sum(d.HourAgo)))
}

// ofMost returns how many there are of how many there may be, or nothing if there may be none.
func ofMost(n, most int) string {
	if most == 0 {
		return ""
	}
	return fmt.Sprintf("%d/%d", n, most)
}

// showInFlight shows what each in_flight does, and what all hold.
func (c *adminClient) showInFlight(s *wire.Status) {
	if len(s.InFlight) == 0 {
		return
	}
	c.say("")
	t := newTable("IN FLIGHT", "MODE", numeric("ADMITTED/S"), numeric("WAITED/S"), numeric("REFUSED/S"), numeric("SHADOW/S"), numeric("RUNNING"), numeric("WAITING"), numeric("MEAN"))
	for i := range s.InFlight {
		f := &s.InFlight[i]
		running, mean := ofMost(f.Running, f.Slots), ""
		if f.RunningMost != f.Running {
			running = fmt.Sprintf("%d (%s)", f.Running, ofMost(f.RunningMost, f.Slots)) // and of one key
		}
		if f.MeanSeconds > 0 {
			mean = digits(f.MeanSeconds) + " s"
		}
		t.row(append(append([]string{sanitize(f.Name), modeText(&f.Decided)}, rateTexts(&f.Decided)...), running, ofMost(f.Waiting, f.Queue), mean)...)
	}
	t.print(c)
	for _, f := range s.InFlight {
		var ranks []string
		for _, r := range f.Ranks {
			ranks = append(ranks, fmt.Sprintf("%d %s", r.Waiting, r.Rank))
		}
		if f.Waiting > 0 && len(ranks) > 0 {
			c.printf("%s: waiting are %s.\n", sanitize(f.Name), strings.Join(ranks, ", "))
		}
	}
	c.printf("Bodies and responses take %s of memory, and %s of the file.\n", humanize.IBytes(uint64(s.Kept.Memory)), humanize.IBytes(uint64(s.Kept.File)))
}

func (c *adminClient) showStore(s *wire.StoreStatus) {
	speed := fmt.Sprintf("%s calls/s of %s ms, %s errors/s", digits(s.Calls), digits(1000*s.Took), digits(s.Failed))
	switch name := sanitize(s.Name); {
	case s.Down && s.Since != nil:
		c.printf("The store %s is DOWN for %v: %s\n", name, elapsed(*s.Since), text.Printable(s.Why, 200))
	case s.Down:
		c.printf("The store %s is DOWN.\n", name)
	case s.Name == "memory":
	case s.Failing:
		c.printf("The store %s is FAILING: %s.\n", name, speed)
	case s.Calls == 0:
		c.printf("The store %s is up.\n", name)
	default:
		c.printf("The store %s is up: %s.\n", name, speed)
	}
	if s.MaxBuckets > 0 {
		c.printf("Memory holds %d of at most %d buckets. %d were dropped before they were empty.\n", s.Buckets, s.MaxBuckets, s.Evictions)
	}
	if s.SnapshotFailing {
		c.printf("The snapshot cannot be written, so a restart takes the buckets back by %.0f s: see Caddy's log.\n", s.SnapshotAge)
	}
}

// shownWarnings leave room for the rest on one screen.
const shownWarnings = 5

func (c *adminClient) showWarnings(s *wire.Status) {
	for i, w := range s.Warnings {
		if i == shownWarnings {
			c.printf("There are %d more warnings: see --json.\n", len(s.Warnings)-i)
			return
		}
		var details []string
		for _, name := range slices.Sorted(maps.Keys(w.Details)) {
			details = append(details, fmt.Sprintf("%s %v", name, w.Details[name]))
		}
		head := "Warning"
		if len(details) > 0 {
			head += " (" + strings.Join(details, ", ") + ")"
		}
		c.printf("%s: %s\n", text.Printable(head, 200), text.Printable(w.Text, 400))
	}
}
