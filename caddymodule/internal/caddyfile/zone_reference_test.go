package caddyfile_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	zonefile "github.com/caddy-throttle/caddy-throttle/caddymodule/internal/caddyfile"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// A referenceEntry is the section of an option in docs/zone-reference.md.
type referenceEntry struct{ name, text string }

// line returns what the entry says after "- <what>: ".
func (e referenceEntry) line(what string) string {
	found := regexp.MustCompile(`(?m)^- ` + what + `: (.*)$`).FindStringSubmatch(e.text)
	if found == nil {
		return ""
	}
	return found[1]
}

func zoneReference(t *testing.T) (entries []referenceEntry) {
	t.Helper()
	page := check.Must(os.ReadFile("../../../docs/zone-reference.md"))(t)
	for _, section := range strings.Split(string(page), "\n### ")[1:] {
		name, text, _ := strings.Cut(section, "\n")
		entries = append(entries, referenceEntry{name, text})
	}
	return entries
}

func TestTheZoneReferenceHasTheOptionsOfTheTable(t *testing.T) {
	entries := zoneReference(t)
	for i, o := range zonefile.ZoneOptions {
		check.Assume(t, i < len(entries) && entries[i].name == o.Name, "section %d: got %v, want %q", i+1, entries[min(i, len(entries)-1)].name, o.Name)
		e := entries[i]
		check.Equal(t, e.line("Syntax"), "`"+strings.TrimSpace(o.Name+" "+o.Syntax)+"`", "%s: the syntax", o.Name)
		byDefault := e.line("Default")
		check.That(t, byDefault != "", "%s: got no default", o.Name)
		check.Equal(t, strings.Contains(byDefault, "beside zones as their default"), o.Beside, "%s may be beside zones", o.Name)
		check.Equal(t, regexp.MustCompile(`(?i)repeat`).MatchString(byDefault), o.Repeats, "%s may repeat", o.Name)
		check.That(t, strings.Contains(e.text, "```caddyfile\n"), "%s: got no example", o.Name)
		check.That(t, regexp.MustCompile(`\b(Don't|Never) `).MatchString(e.text), "%s: got no mistake to avoid", o.Name)
	}
	check.Equal(t, len(entries), len(zonefile.ZoneOptions), "options in the reference")
}

// The table at the top of the page leads to each of the eighteen options, once, and to the
// six of most sites first. It fits on one screen.
func TestTheZoneReferenceLeadsToEachOption(t *testing.T) {
	page := check.Must(os.ReadFile("../../../docs/zone-reference.md"))(t)
	_, table, _ := strings.Cut(string(page), "\n| for | options |\n")
	table, _, _ = strings.Cut(table, "\n\n")
	var got []string
	for _, link := range regexp.MustCompile(`\[([a-z_]+)\]\(#([a-z_]+)\)`).FindAllStringSubmatch(table, -1) {
		if got = append(got, link[1]); link[1] != link[2] {
			t.Errorf("%s leads to %s", link[1], link[2])
		}
	}
	first := []string{"match", "exempt", "key", "limit", "refund", "shadow"}
	row, _, _ := strings.Cut(strings.TrimPrefix(table, "|---|---|\n"), "\n")
	check.That(t, len(got) >= len(first) && slices.Equal(got[:len(first)], first) && strings.Count(row, "](#") == len(first), "got %v, want a row of %v first", got, first)
	want := optionNames()
	slices.Sort(got)
	slices.Sort(want)
	check.That(t, slices.Equal(got, want) && len(want) == 18, "got links to %d options %v, want to 18, %v", len(got), got, want)
	rows := strings.Count(table, "\n")
	check.That(t, rows <= 20, "got a table of %d rows, want one screen", rows)
}

func optionNames() (names []string) {
	for _, o := range zonefile.ZoneOptions {
		names = append(names, o.Name)
	}
	return names
}

// A zone that says the default of an option is the same as one that does not say it.
func TestTheZoneReferenceGivesTheDefaults(t *testing.T) {
	definitionOf := func(options string) string {
		t.Helper()
		file := fmt.Sprintf("http://example.com {\nthrottle {\nzone some {\nlimit 60 2/s\n%s\n}\n}\n}\n", options)
		handlers := handlersIn(t, appsOf(t, servertest.Adapt(t, file))["http"])
		check.Assume(t, len(handlers) == 1 && len(handlers[0].Zone) == 1, "got %v, want one zone", handlers)
		return handlers[0].Zone[0].Definition()
	}
	needs := map[string]string{"read_body": "cost body_items"}
	var checked []string
	for _, e := range zoneReference(t) {
		found := regexp.MustCompile("^`([^`]*)`\\.$").FindStringSubmatch(e.line("Default"))
		if found == nil || e.name == "cost" {
			continue
		}
		checked = append(checked, e.name)
		with, without := definitionOf(needs[e.name]+"\n"+e.name+" "+found[1]), definitionOf(needs[e.name])
		check.Equal(t, with, without, "%s", e.name)
	}
	want := []string{"key", "read_body", "enforce"}
	check.That(t, slices.Equal(checked, want), "got the defaults of %v, want those of %v", checked, want)
}
