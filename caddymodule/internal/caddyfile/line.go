package caddyfile

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/config"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// startsWithDigit tells numbers and rates from names.
var startsWithDigit = regexp.MustCompile(`^[0-9]`)

const wantLine = "want throttle <zone> [<key>...] <capacity> <leak>"

// parseLine reads a whole zone from one line.
func parseLine(d *caddyfile.Dispenser, matcher matcherToken, words []string) (*zoneReader, error) {
	if err := checkZoneWord(words); err != nil {
		return nil, d.WrapErr(err)
	}
	r := newZoneReader(d, matcher)
	r.zone.Name = words[0]
	if len(words) == 1 {
		return r, nil
	}
	end := limitEnd(words)
	if end < len(words) {
		return nil, d.WrapErr(meantLine(d.File(), words, end))
	}
	r.zone.Limit = words[end-2] + " " + words[end-1]
	r.places["limit"] = []string{r.place}
	if end == 3 {
		return r, nil
	}
	sources, used, err := parseKey(words[1 : end-2])
	if err != nil {
		return nil, d.WrapErr(err)
	}
	key := &ZoneOptions[OptionNamed("key")]
	keyIn(r.zone).Sources, r.places["key"] = sources, []string{r.place}
	return r, r.parseDetails(key, words[1+used:end-2])
}

// limitEnd returns how many words there are up to the end of the limit, or 0.
func limitEnd(words []string) int {
	for end := 3; end <= len(words); end++ {
		if _, err := leakybucket.ParseLimit(words[end-2] + " " + words[end-1]); err == nil {
			return end
		}
	}
	return 0
}

// checkZoneWord says what stands on a line after throttle where the zone should.
func checkZoneWord(words []string) error {
	first := words[0]
	number := func(word string) bool { _, plain := leakybucket.ParseCost(word); return plain }
	switch {
	case slices.Contains(config.SourceWords, first) || len(words) > 1 && strings.Contains(first, "{"):
		return fmt.Errorf("no zone name before %s: %s", first, wantLine)
	case strings.HasPrefix(first, "zone="):
		return fmt.Errorf("unexpected %q: %s", first, wantLine)
	case len(words) == 1:
		return nil
	case slices.Contains(config.MatcherWords, first) && strings.HasPrefix(words[1], "/"):
		return fmt.Errorf("no zone name before %s, which is a matcher: want throttle %s", first, strings.Join(words[1:], " "))
	case len(words) == 2 && first == "zone":
		return fmt.Errorf("zone %s stands on the line of throttle: want throttle %[1]s <key>... <capacity> <leak>, or the zone in the block", words[1])
	case number(first):
		if _, err := leakybucket.ParseRate(words[1]); err == nil {
			return fmt.Errorf("no zone name before %s %s: %s", first, words[1], wantLine)
		}
	}
	return nil
}

// meantLine returns an error with what to write instead of words after throttle that are
// no whole zone, or have more behind the limit than that ends with.
func meantLine(file string, words []string, end int) error {
	if end > 0 {
		line, more := "throttle "+strings.Join(quoted(words[:end]), " "), words[end:]
		option := strings.Join(quoted(more), " ")
		if !adapts(file, option) {
			_, option, _ = strings.Cut(zoneLines{{words: []string{"limit", words[end-2], words[end-1]}}}.translate(file, more[0], more[1:]), "want ")
		}
		if option != "" && adapts(file, option) {
			line = block(line, option)
		}
		return fmt.Errorf("unexpected %q after %s: %s", more[0], words[end-1], want(line))
	}
	at := 1 + slices.IndexFunc(words[1:], func(word string) bool { return startsWithDigit.MatchString(word) || former(word) != "" })
	if at == 0 {
		return fmt.Errorf("no limit after %s: %s", words[len(words)-1], wantLine)
	}
	why, limit := meantLimit(words[at:])
	if limit == "" {
		why = fmt.Sprintf("unexpected %q after %s", words[at], words[at-1])
		_, limit, _ = strings.Cut(zoneLines(nil).translate(file, words[at], words[at+1:]), "want limit ")
	}
	if limit != "" {
		return fmt.Errorf("%s: want throttle %s %s", why, strings.Join(quoted(words[:at]), " "), limit)
	}
	_, err := leakybucket.ParseLimit(strings.Join(words[max(1, len(words)-2):], " "))
	return fmt.Errorf("parsing limit: %w; %s", err, wantLine)
}
