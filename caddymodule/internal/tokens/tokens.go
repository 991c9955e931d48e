// Package tokens reads words of a Caddyfile: one of a kind after an option, flags, and the
// options of a store. Its errors say what was probably meant. Begin with [ParseArg].
package tokens

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/text"
)

// spelledOut is a duration whose unit is spelled out, such as 1hour or 10min.
var spelledOut = regexp.MustCompile(`^([0-9.]+)((s)ec|(s)econd|(m)in|(m)inute|(h)r|(h)our|(d)ay)s?$`)

func ParseDuration(word string) (caddy.Duration, error) {
	duration, err := caddy.ParseDuration(word)
	if err == nil && duration > 0 {
		return caddy.Duration(duration), nil
	}
	short := spelledOut.ReplaceAllString(strings.ToLower(word), "$1$3$4$5$6$7$8$9")
	if duration, err := caddy.ParseDuration(short); err == nil && duration > 0 {
		return 0, fmt.Errorf("invalid duration %q: did you mean %s?", word, short)
	}
	return 0, fmt.Errorf("invalid duration %q: want a number above 0 with its unit ms, s, m, h or d, such as 10s", word)
}

// WantedAfter is the syntax of each option of a zone.
var WantedAfter = make(map[string]string)

// ParseArg reads the one word after an option.
func ParseArg[T any](d *caddyfile.Dispenser, target *T, parse func(string) (T, error)) error {
	option := d.Val()
	words := d.RemainingArgs()
	want := cmp.Or(WantedAfter[option], "one word, in quotes if it has blanks or a #")
	switch {
	case len(words) == 0:
		return d.Errf("%s has no value: want %s", option, want)
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

// ParseFlag reads an option without a word.
func ParseFlag(d *caddyfile.Dispenser, target *bool) error {
	option := d.Val()
	if *target {
		return d.Errf("%s is given twice", option)
	}
	if d.NextArg() {
		return d.Errf("unexpected %q after %s: it takes no word", d.Val(), option)
	}
	*target = true
	return nil
}

func ParseWord(word string) (string, error) {
	if word == "" {
		return "", errors.New("the word is empty: want at least a letter")
	}
	return word, nil
}

// OneOf returns a parser that accepts one of a few words.
func OneOf(words ...string) func(string) (string, error) {
	return func(word string) (string, error) {
		if !slices.Contains(words, word) {
			return "", text.Unknown("word", word, "", words)
		}
		return word, nil
	}
}

// ParseWhole returns a parser of whole numbers from 1 to most.
func ParseWhole(most int) func(string) (int, error) {
	return func(word string) (int, error) {
		n, err := strconv.Atoi(word)
		bare := strings.TrimSuffix(word, "%")
		if _, wrong := strconv.Atoi(bare); wrong == nil && bare != word {
			return 0, fmt.Errorf("invalid number %q: did you mean %s?", word, bare)
		}
		if err != nil || n < 1 {
			return 0, fmt.Errorf("invalid number %q: want a whole one above 0", word)
		}
		if n > most {
			return 0, fmt.Errorf("invalid number %q: want at most %d", word, most)
		}
		return n, nil
	}
}

// Once reports an option that is given a second time.
func Once(d *caddyfile.Dispenser, seen map[string]bool, option string) error {
	if seen[option] {
		return d.Errf("%s is given twice", option)
	}
	seen[option] = true
	return nil
}

// Options reads a block of options, each at most once.
func Options(d *caddyfile.Dispenser, where string, read map[string]func() error) error {
	seen := make(map[string]bool)
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		if read[d.Val()] == nil {
			return UnknownOption(d, where, slices.Sorted(maps.Keys(read)))
		}
		if err := Once(d, seen, d.Val()); err != nil {
			return err
		}
		if err := read[d.Val()](); err != nil {
			return err
		}
	}
	return nil
}

// Translations are hints for words of other limiters that no line of a zone replaces.
var Translations = map[string]string{
	"limit_rate":           "throttle slows no answers down; settle bytes <unit> charges them by their size",
	"error_page":           "page, in the block of refusal, is what refused people see",
	"client_max_body_size": "Caddy's directive request_body limits bodies, by max_size in its block; in_flight <n> buffer <size> reads them before a slot is taken",
	"distributed":          "store redis <url> or store postgres <url> in the global options makes several Caddys agree",
	"storage":              "store redis <url> or store postgres <url> in the global options makes several Caddys agree",
	"trusted_proxies":      "it belongs in the block servers of the global options, as in trusted_proxies static private_ranges",
}

// SiteDirectives are directives of sites that often stand after throttle. Within its
// block they mean that a brace is missing.
var SiteDirectives = []string{
	"abort", "basic_auth", "encode", "file_server", "handle", "handle_errors", "handle_path", "header", "import", "log",
	"php_fastcgi", "redir", "request_body", "respond", "reverse_proxy", "rewrite", "root", "tls", "try_files", "uri",
}

// inMemory is the place of the options of the store memory.
const inMemory = "the global options, in the block of store memory"

// Homes are the places of options that belong outside of a zone.
var Homes = map[string]string{
	"store": "the global options", "signing_key": "the global options", "store_timeout": "the global options", "nodes": "the global options", "plan": "the global options",
	"max_buckets": inMemory, "snapshot": inMemory, "snapshot_interval": inMemory,
	"ratelimit_headers": "the directive throttle, beside its zones",
}

// UnknownOption reports the current word as an unknown option, with a hint.
func UnknownOption(d *caddyfile.Dispenser, where string, known []string) error {
	word := d.Val()
	if word == "{" {
		return d.Errf("unexpected { in %s: the option before it takes no block", where)
	}
	name, _, _ := strings.Cut(word, "=") // as in nginx
	if hint, translated := Translations[name]; translated {
		return d.Errf("unknown option %q in %s: %s", word, where, hint)
	}
	if name == "zone" && !slices.Contains(known, "zone") {
		return d.Errf("unknown option %q in %s: zones stand beside each other; is a } missing before it?", word, where)
	}
	if home, elsewhere := Homes[word]; elsewhere {
		return d.Errf("unknown option %q in %s: it belongs in %s", word, where, home)
	}
	if _, err := caddy.GetModule("http.matchers." + word); (err == nil || strings.HasPrefix(word, "@")) && slices.Contains(known, "match") {
		rest := strings.Join(append([]string{word}, d.RemainingArgs()...), " ")
		return d.Errf("unknown option %q in %s: did you mean match %s?", word, where, rest)
	}
	if slices.Contains(SiteDirectives, word) {
		return d.Errf("unknown option %q in %s: it is a directive of the site; is a } missing before it?", word, where)
	}
	return d.WrapErr(text.Unknown("option", word, " in "+where, known))
}

// Place returns the current file and line, as errors show them.
func Place(d *caddyfile.Dispenser) string { return strings.TrimPrefix(d.Err("").Error(), ", ") }

// UnmarshalStore sets up a shared store from Caddyfile tokens: its URL, and a block of
// options. words are the options with one word, flags those without. The store is provisioned
// and cleaned up, so that the errors of that have a line, unless there are placeholders, whose
// values only the Caddy that runs may have.
func UnmarshalStore(d *caddyfile.Dispenser, store storeModule, url *string, words map[string]*string, flags map[string]*bool) error {
	d.Next() // the store's name
	name, here := d.Val(), Place(d)
	if err := parseSecret(d, url); err != nil {
		return fmt.Errorf("%w: want store %s <url>", err, name)
	}
	read := make(map[string]func() error)
	for option, word := range words {
		read[option] = func() error { return parseSecret(d, word) }
	}
	for option, flag := range flags {
		read[option] = func() error { return ParseFlag(d, flag) }
	}
	if err := Options(d, "store "+name, read); err != nil {
		return err
	}
	given := []string{*url}
	for _, word := range words {
		given = append(given, *word)
	}
	if strings.Contains(strings.Join(given, ""), "{") {
		return nil
	}
	if err := store.Provision(caddy.Context{}); err != nil {
		return fmt.Errorf("store %s: %w, %s", name, err, here)
	}
	return store.Cleanup()
}

type storeModule interface {
	caddy.Provisioner
	caddy.CleanerUpper
}

// parseSecret reads the one word after an option. Errors do not show it.
func parseSecret(d *caddyfile.Dispenser, target *string) error {
	option, words := d.Val(), d.RemainingArgs()
	if len(words) != 1 || words[0] == "" {
		return d.Errf("%s needs one word after it: want one that is not empty, in quotes if it has spaces", option)
	}
	*target = words[0]
	return nil
}
