package cli

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/changes"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/text"
)

func statusCommand() command {
	return command{
		watch: true, use: "status", short: "Shows what the zones of a running Caddy do",
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
	if s.Untold > 0 {
		c.printf("The store has not been told of %s yet.\n", text.Plural(s.Untold, "change"))
	}
	if s.Skipped > 0 {
		c.printf("The store has %d entries that are no change this Caddy can read. They are skipped: %s\n", s.Skipped, text.Printable(strings.Join(s.Names, ", "), 200))
	}
}

func (c *adminClient) showStatus(s *wire.Status) {
	c.showZones(s.Zones)
	c.say("")
	c.showStore(&s.Store)
	if s.Changes != nil {
		c.say("The requests and buckets above are this Caddy's alone.")
	}
	c.showChanges(s.Changes)
	c.showOverrides(&s.Overrides)
	c.showFiles(s.Zones)
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
		delayed, shadow := "", ""
		if z.Total["delayed"]+z.Total["shadow_delayed"] > 0 {
			delayed = rateText(z, "delayed", "shadow_delayed")
		}
		if z.Total["shadow_refused"] > 0 {
			shadow = rateText(z, "shadow_refused")
		}
		t.row(sanitize(z.Zone), modeText(z), rateText(z, "admitted", "delayed", "shadow_delayed"), delayed, rateText(z, "refused"), shadow,
			fmt.Sprint(z.Buckets), waitingText(z))
	}
	t.print(c)
	for _, z := range zones {
		if z.Total["shadow_refused"] > 0 {
			c.showGroup(z.Zone, z.Group)
		}
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
	c.say("")
}

// unlessZero returns a number, or nothing.
func unlessZero[N int | int64 | uint64](n N) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}

func modeText(z *wire.ZoneStatus) string {
	mode := z.Mode
	if z.ShadowUntil != nil {
		mode += " for " + remaining(*z.ShadowUntil)
	}
	if z.Limit != "" {
		mode += ", " + z.Limit
	}
	return mode
}

// rateText returns how many requests a second were decided so, and an hour ago.
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

func waitingText(z *wire.ZoneStatus) string {
	if z.WaitingMost == 0 {
		return ""
	}
	return fmt.Sprintf("%d/%d", z.Waiting, z.WaitingMost)
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

// showFiles says which override files are in force, and which are wrong.
func (c *adminClient) showFiles(zones []wire.ZoneStatus) {
	for _, z := range zones {
		f := z.OverrideFile
		if f == nil {
			continue
		}
		c.printf("%s: %s of %s, read %s ago.\n", sanitize(z.Zone), text.Plural(f.Overrides, "override"), sanitize(f.File), elapsed(f.Read))
		if f.Problem != "" {
			c.printf("The file cannot be used as it is now, so these stay: %s\n", text.Printable(f.Problem, 1000))
		}
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
