package caddymodule

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/dustin/go-humanize"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// wantedAfter is the syntax of each option of a zone.
var wantedAfter = make(map[string]string)

func init() {
	for _, o := range zoneOptions {
		wantedAfter[o.name] = o.usage()
	}
}

// parseArg reads the one word after an option.
func parseArg[T any](d *caddyfile.Dispenser, target *T, parse func(string) (T, error)) error {
	option := d.Val()
	words := d.RemainingArgs()
	want := cmp.Or(wantedAfter[option], "one word")
	switch {
	case len(words) == 0:
		return d.Errf("%s has no value: want %s", option, want)
	case len(words) > 1 && wantedAfter[words[1]] != "":
		return d.Errf("unexpected %q after %s %s: want a line for each option", words[1], option, words[0])
	case len(words) > 1:
		return d.Errf("unexpected %q after %s %s: want %s", words[1], option, words[0], want)
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
		return "", errors.New("the word is empty: want at least a letter")
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

// parseUnits reads an amount in units of cost.
func parseUnits(word string) (*float64, error) {
	units, plain := leakybucket.ParseCost(word)
	if !plain {
		return nil, fmt.Errorf("invalid number %q: want one such as 2 or 0.5", word)
	}
	return &units, nil
}

// leastPlainSize is the least size without a unit. Less is hardly meant as bytes.
const leastPlainSize = 512

// parseSize returns a parser of sizes up to most bytes, which are whole MiB.
func parseSize(most uint64) func(string) (int64, error) {
	return func(word string) (int64, error) {
		size, err := humanize.ParseBytes(word)
		if n, plain := leakybucket.ParseCost(word); plain && 0 < n && n < leastPlainSize {
			return 0, fmt.Errorf("invalid size %q: it has no unit: did you mean %sKiB?", word, word)
		}
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

// translations are hints for words of other limiters that no line of a zone replaces.
var translations = map[string]string{
	"limit_rate":           "throttle slows no answers down; settle bytes <unit> charges them by their size",
	"error_page":           "page, in the block of refusal, is what refused people see",
	"client_max_body_size": "Caddy's directive request_body limits bodies, by max_size in its block; in_flight <n> buffer <size> reads them before a slot is taken",
	"distributed":          "store redis <url> or store postgres <url> in the global options makes several Caddys agree",
	"storage":              "store redis <url> or store postgres <url> in the global options makes several Caddys agree",
	"trusted_proxies":      "it belongs in the block servers of the global options, as in trusted_proxies static private_ranges",
}

// siteDirectives are directives of sites that often stand after throttle. Within its
// block they mean that a brace is missing.
var siteDirectives = []string{
	"abort", "basic_auth", "encode", "file_server", "handle", "handle_errors", "handle_path", "header", "import", "log",
	"php_fastcgi", "redir", "request_body", "respond", "reverse_proxy", "rewrite", "root", "tls", "try_files", "uri",
}

// inMemory is the place of the options of the store memory.
const inMemory = "the global options, in the block of store memory"

// homes are the places of options that belong outside of a zone.
var homes = map[string]string{
	"store": "the global options", "store_timeout": "the global options", "nodes": "the global options", "plan": "the global options",
	"max_buckets": inMemory, "snapshot": inMemory, "snapshot_interval": inMemory,
	"ratelimit_headers": "the directive throttle, beside its zones",
}

// unknownOption reports the current word as an unknown option, with a hint.
func unknownOption(d *caddyfile.Dispenser, where string, known []string) error {
	word := d.Val()
	if word == "{" {
		return d.Errf("unexpected { in %s: the option before it takes no block", where)
	}
	name, _, _ := strings.Cut(word, "=") // as in nginx
	if hint, translated := translations[name]; translated {
		return d.Errf("unknown option %q in %s: %s", word, where, hint)
	}
	if name == "zone" && !slices.Contains(known, "zone") {
		return d.Errf("unknown option %q in %s: zones stand beside each other; is a } missing before it?", word, where)
	}
	if home, elsewhere := homes[word]; elsewhere {
		return d.Errf("unknown option %q in %s: it belongs in %s", word, where, home)
	}
	if _, err := caddy.GetModule("http.matchers." + word); (err == nil || strings.HasPrefix(word, "@")) && slices.Contains(known, "match") {
		rest := strings.Join(append([]string{word}, d.RemainingArgs()...), " ")
		return d.Errf("unknown option %q in %s: did you mean match %s?", word, where, rest)
	}
	if slices.Contains(siteDirectives, word) {
		return d.Errf("unknown option %q in %s: it is a directive of the site; is a } missing before it?", word, where)
	}
	return d.WrapErr(unknown("option", word, " in "+where, known))
}

// unknown reports an unknown word, with the nearest known one.
func unknown(kind, word, where string, known []string) error {
	if meant := nearest(word, known); meant != "" {
		return fmt.Errorf("unknown %s %q%s: did you mean %s?", kind, word, where, meant)
	}
	if len(known) == 1 {
		return fmt.Errorf("unknown %s %q%s: want %s", kind, word, where, known[0])
	}
	return fmt.Errorf("unknown %s %q%s: want one of %s", kind, word, where, strings.Join(known, ", "))
}

// nearest returns the known word of which a word is a misspelling or the beginning, or
// "". A misspelling has at most one edit in three letters.
func nearest(word string, known []string) string {
	best, least := "", max(1, len(word)/3)+1
	if i := slices.IndexFunc(known, func(k string) bool { return len(word) > 4 && strings.HasPrefix(k, word+"_") }); i >= 0 {
		return known[i]
	}
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
