package caddymodule

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/dustin/go-humanize"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// parseArg reads the one word after an option.
func parseArg[T any](d *caddyfile.Dispenser, target *T, parse func(string) (T, error)) error {
	option := d.Val()
	words := d.RemainingArgs()
	switch {
	case len(words) == 0:
		return d.Errf("%s has no value: want one word", option)
	case len(words) > 1:
		return d.Errf("unexpected %q after %s %s: want one word", words[1], option, words[0])
	}
	value, err := parse(words[0])
	if err != nil {
		return d.Errf("parsing %s: %w", option, err)
	}
	*target = value
	return nil
}

func parseFlag(d *caddyfile.Dispenser, target *bool) error {
	option := d.Val()
	if d.NextArg() {
		return d.Errf("unexpected %q after %s: it takes no word", d.Val(), option)
	}
	*target = true
	return nil
}

func parseWord(word string) (string, error) {
	if word == "" {
		return "", errors.New("the word is empty")
	}
	return word, nil
}

// oneOf returns a parser that accepts one of a few words.
func oneOf(words ...string) func(string) (string, error) {
	return func(word string) (string, error) {
		if !slices.Contains(words, word) {
			return "", unknown("word", word, "", words)
		}
		return word, nil
	}
}

// parseLeak checks a rate and returns it as it was written, which is its form in
// JSON.
func parseLeak(word string) (string, error) {
	_, err := leakybucket.ParseRate(word)
	return word, err
}

// parseUnits reads an amount in units of cost.
func parseUnits(word string) (*float64, error) {
	units, plain := leakybucket.ParseCost(word)
	if !plain {
		return nil, fmt.Errorf("invalid number %q: want one such as 2 or 0.5", word)
	}
	return &units, nil
}

// parseSize returns a parser of sizes up to most bytes, which are whole MiB.
func parseSize(most uint64) func(string) (int64, error) {
	return func(word string) (int64, error) {
		size, err := humanize.ParseBytes(word)
		if err != nil || size < 1 || size > most {
			return 0, fmt.Errorf("invalid size %q: want one such as 64KiB, up to %dMiB", word, most>>20)
		}
		return int64(size), nil
	}
}

func parseWhole(least, most int) func(string) (int, error) {
	return func(word string) (int, error) {
		n, err := strconv.Atoi(word)
		if err != nil || n < least || n > most {
			return 0, fmt.Errorf("invalid number %q: want one from %d to %d", word, least, most)
		}
		return n, nil
	}
}

// once reports an option that is given a second time.
func once(d *caddyfile.Dispenser, seen map[string]bool, option string) error {
	if seen[option] {
		return d.Errf("%s is given twice", option)
	}
	seen[option] = true
	return nil
}

const (
	leakIs   = "leak <n>/<s|m|h|d> is the sustained rate, at which a bucket drains"
	burstIs  = "capacity <n> is the burst, and leak <n>/<s|m|h|d> the sustained rate"
	exemptIs = "exempt <request matchers> names requests that are never charged, and override <key> unlimited a key"
	slotsAre = "in_flight <n> is how many requests of a key are served at once"
)

// translations are hints for words of other limiters.
var translations = map[string]string{
	"rate":           leakIs,
	"average":        leakIs,
	"burst":          "capacity <n> is how much a bucket holds; nginx's burst=10 is capacity 11",
	"events":         burstIs,
	"requests":       burstIs,
	"count":          burstIs + "; to charge only some answers, count_only status <code|class>...",
	"window":         "a leaky bucket has no window; " + leakIs,
	"period":         "the period is part of leak <n>/<s|m|h|d>, as in leak 300/5m",
	"dry_run":        "shadow decides, counts and logs, and never refuses",
	"nodelay":        "requests that fit pass at once, unless the zone says delay",
	"whitelist":      exemptIs,
	"allowlist":      exemptIs,
	"ban":            "block [<duration>...] refuses a key for a while after an overflow",
	"concurrency":    slotsAre,
	"limit_conn":     slotsAre,
	"max_concurrent": slotsAre,
}

// homes are the places of options that belong outside of a zone.
var homes = map[string]string{
	"store": "the global options", "store_timeout": "the global options", "nodes": "the global options", "plan": "the global options",
	"ratelimit_headers": "the directive throttle, beside its zones",
}

// unknownOption reports the current word as an unknown option, with a hint.
func unknownOption(d *caddyfile.Dispenser, where string, known []string) error {
	word := d.Val()
	if hint, translated := translations[word]; translated {
		return d.Errf("unknown option %q in %s: %s", word, where, hint)
	}
	if home, elsewhere := homes[word]; elsewhere {
		return d.Errf("unknown option %q in %s: it belongs in %s", word, where, home)
	}
	return d.WrapErr(unknown("option", word, " in "+where, known))
}

// unknown reports an unknown word, with the nearest known one.
func unknown(kind, word, where string, known []string) error {
	if meant := nearest(word, known); meant != "" {
		return fmt.Errorf("unknown %s %q%s: did you mean %s?", kind, word, where, meant)
	}
	return fmt.Errorf("unknown %s %q%s: want one of %s", kind, word, where, strings.Join(known, ", "))
}

// nearest returns the known word of which a word is a misspelling, or "". A
// misspelling has at most one edit in three letters.
func nearest(word string, known []string) string {
	best, least := "", max(1, len(word)/3)+1
	for _, candidate := range known {
		if n := edits(strings.ToLower(word), candidate); n < least {
			best, least = candidate, n
		}
	}
	return best
}

// edits returns the optimal string alignment distance of two words: how many letters
// must be inserted, deleted, replaced or swapped with a neighbour.
func edits(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		for j := range rows[i] {
			if i == 0 || j == 0 {
				rows[i][j] = i + j
				continue
			}
			replaced := rows[i-1][j-1]
			if a[i-1] != b[j-1] {
				replaced++
			}
			rows[i][j] = min(replaced, rows[i-1][j]+1, rows[i][j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}

// place returns the current file and line, as errors show them.
func place(d *caddyfile.Dispenser) string { return strings.TrimPrefix(d.Err("").Error(), ", ") }
