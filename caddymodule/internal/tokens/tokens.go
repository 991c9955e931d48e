// Package tokens reads words of a Caddyfile: one of a kind after an option, flags, and the
// options of a store. Its errors say what was probably meant. Begin with [ParseArg].
package tokens

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/text"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// spelledOut is a duration whose unit is spelled out, such as 1hour or 10min.
var spelledOut = regexp.MustCompile(`^([0-9.]+)((s)ec|(s)econd|(m)in|(m)inute|(h)r|(h)our|(d)ay)s?$`)

// ParseDuration reads a duration above 0.
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

// Field returns a pointer to the field that has a name in JSON.
func Field(of any, name string) any {
	v := reflect.ValueOf(of).Elem()
	for i := range v.NumField() {
		if tag, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ","); tag == name {
			return v.Field(i).Addr().Interface()
		}
	}
	panic("no field " + name)
}

// Set sets the field that a pointer points to from its word. A flag has none. What texts and
// numbers may be is for others to check.
func Set(field any, word string) (err error) {
	plain := true
	switch f := field.(type) {
	case *bool:
		*f = true
	case *string:
		if *f = word; word == "" {
			err = errors.New("the word is empty: want at least a letter")
		}
	case *int:
		*f, err = parseWhole(word)
	case *float64:
		*f, plain = leakybucket.ParseCost(word)
	case **float64:
		*f = new(float64)
		**f, plain = leakybucket.ParseCost(word)
	case *caddy.Duration:
		*f, err = ParseDuration(word)
	default:
		panic("no word for a field")
	}
	if !plain {
		err = fmt.Errorf("invalid number %q: want one such as 2 or 0.5", word)
	}
	return err
}

// ParseArg reads the one word after an option into the field that a pointer points to, nothing
// for a flag, and for a list any number of words.
func ParseArg(d *caddyfile.Dispenser, field any) error {
	switch f := field.(type) {
	case *bool:
		return parseFlag(d, f)
	case *[]string:
		*f = append([]string{}, d.RemainingArgs()...)
		return nil
	}
	option := d.Val()
	words := d.RemainingArgs()
	want := cmp.Or(WantedAfter[option], "one word, in quotes if it has blanks or a #")
	switch {
	case len(words) == 0:
		return d.Errf("%s has no value: want %s", option, want)
	case len(words) > 1:
		return d.Errf("unexpected %q after %s %s: want %s", words[1], option, words[0], want)
	}
	if err := Set(field, words[0]); err != nil {
		return d.Errf("parsing %s: %w", option, err)
	}
	return nil
}

// parseFlag reads an option without a word.
func parseFlag(d *caddyfile.Dispenser, target *bool) error {
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

// parseWhole reads a whole number above 0.
func parseWhole(word string) (int, error) {
	n, err := strconv.Atoi(word)
	bare := strings.TrimSuffix(word, "%")
	if _, wrong := strconv.Atoi(bare); wrong == nil && bare != word {
		return 0, fmt.Errorf("invalid number %q: did you mean %s?", word, bare)
	}
	if err != nil || n < 1 {
		return 0, fmt.Errorf("invalid number %q: want a whole one above 0", word)
	}
	return n, nil
}

// Options reads a block of options, each at most once, into the fields of a struct that have
// their names in JSON. After each it calls check, unless that is nil.
func Options(d *caddyfile.Dispenser, where string, into any, check func() error, names ...string) error {
	return eachOption(d, where, names, func() error { return ReadOption(d, into, check) })
}

// ReadOption reads an option into the field of a struct that has its name in JSON. Then it
// calls check, unless that is nil.
func ReadOption(d *caddyfile.Dispenser, into any, check func() error) error {
	err := ParseArg(d, Field(into, d.Val()))
	if err == nil && check != nil {
		err = Wrap(d, check())
	}
	return err
}

// eachOption reads a block of options, each at most once.
func eachOption(d *caddyfile.Dispenser, where string, names []string, read func() error) error {
	seen := make(map[string]bool)
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		switch option := d.Val(); {
		case !slices.Contains(names, option):
			return UnknownOption(d, where, names)
		case seen[option]:
			return d.Errf("%s is given twice", option)
		default:
			seen[option] = true
		}
		if err := read(); err != nil {
			return err
		}
	}
	return nil
}

// Wrap adds the place to an error, if there is one.
func Wrap(d *caddyfile.Dispenser, err error) error {
	if err == nil {
		return nil
	}
	return d.WrapErr(err)
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
// options, which are fields of the store. The store is provisioned and cleaned up, so that the
// errors of that have a line, unless there are placeholders, whose values only the Caddy that
// runs may have.
func UnmarshalStore(d *caddyfile.Dispenser, store storeModule, options ...string) error {
	d.Next() // the store's name
	name, here := d.Val(), Place(d)
	filledIn := false
	secret := func(option string) error {
		word := Field(store, option).(*string)
		err := parseSecret(d, word)
		filledIn = filledIn || strings.Contains(*word, "{")
		return err
	}
	if err := secret("url"); err != nil {
		return fmt.Errorf("%w: want store %s <url>", err, name)
	}
	err := eachOption(d, "store "+name, options, func() error {
		if flag, is := Field(store, d.Val()).(*bool); is {
			return parseFlag(d, flag)
		}
		return secret(d.Val())
	})
	if err != nil || filledIn {
		return err
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
