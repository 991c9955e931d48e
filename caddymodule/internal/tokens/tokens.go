// Package tokens reads words of a Caddyfile: one of a kind after an option, flags, and the
// options of a store. Its errors say what was probably meant. Begin with [ParseArg].
package tokens

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/text"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// ParseDuration reads a duration above 0.
func ParseDuration(word string) (caddy.Duration, error) {
	duration, err := caddy.ParseDuration(word)
	if err == nil && duration > 0 {
		return caddy.Duration(duration), nil
	}
	return 0, fmt.Errorf("invalid duration %q: want a number above 0 with its unit ms, s, m, h or d, such as 10s", word)
}

// Fields are the words of a block, each with a pointer to the field that it sets, or with a
// func() error that reads what follows the word.
type Fields map[string]any

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
		err = fmt.Errorf("%T takes no word", field)
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
	const want = "one word, in quotes if it has blanks or a #"
	option := d.Val()
	words := d.RemainingArgs()
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
	if err != nil || n < 1 {
		return 0, fmt.Errorf("invalid number %q: want a whole one above 0", word)
	}
	return n, nil
}

// Options reads a block of options, each at most once. After each it calls check, unless that
// is nil.
func Options(d *caddyfile.Dispenser, where string, fields Fields, check func() error) error {
	seen := make(map[string]bool)
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		option := d.Val()
		switch {
		case fields[option] == nil:
			return UnknownOption(d, where, slices.Sorted(maps.Keys(fields)))
		case seen[option]:
			return d.Errf("%s is given twice", option)
		}
		seen[option] = true
		if err := fields.Read(d, check); err != nil {
			return err
		}
	}
	return nil
}

// Read reads what follows the current word. Then it calls check, unless that is nil.
func (f Fields) Read(d *caddyfile.Dispenser, check func() error) error {
	if parse, special := f[d.Val()].(func() error); special {
		return parse()
	}
	err := ParseArg(d, f[d.Val()])
	if err == nil && check != nil {
		err = Wrap(d, check())
	}
	return err
}

// Wrap adds the place to an error, if there is one.
func Wrap(d *caddyfile.Dispenser, err error) error {
	if err == nil {
		return nil
	}
	return d.WrapErr(err)
}

// UnknownOption reports the current word as an unknown option, with the nearest known one, or
// all of them.
func UnknownOption(d *caddyfile.Dispenser, where string, known []string) error {
	if d.Val() == "{" {
		return d.Errf("unexpected { in %s: the option before it takes no block", where)
	}
	return d.WrapErr(text.Unknown("option", d.Val(), " in "+where, known))
}

// Place returns the current file and line, as errors show them.
func Place(d *caddyfile.Dispenser) string { return strings.TrimPrefix(d.Err("").Error(), ", ") }

// UnmarshalStore sets up a shared store from Caddyfile tokens: its URL, and a block of
// options, which are texts and flags. The store is provisioned and cleaned up, so that the
// errors of that have a line, unless there are placeholders, whose values only the Caddy that
// runs may have.
func UnmarshalStore(d *caddyfile.Dispenser, store storeModule, url *string, options Fields) error {
	d.Next() // the store's name
	name, here := d.Val(), Place(d)
	if err := parseSecret(d, url); err != nil {
		return fmt.Errorf("%w: want store %s <url>", err, name)
	}
	filledIn := strings.Contains(*url, "{")
	parsers := make(Fields)
	for option, field := range options {
		parsers[option] = field
		if secret, is := field.(*string); is {
			parsers[option] = func() error {
				err := parseSecret(d, secret)
				filledIn = filledIn || strings.Contains(*secret, "{")
				return err
			}
		}
	}
	if err := Options(d, "store "+name, parsers, nil); err != nil || filledIn {
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
