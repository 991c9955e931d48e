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

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/option"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// Fields are the words of a block, each with a pointer to the field that it sets, or with a
// func() error or a [Repeated] that reads what follows the word.
type Fields map[string]any

// A Repeated reads what follows a word that may stand several times.
type Repeated func() error

// Set sets the field that a pointer points to from its word. A flag has none. What texts and
// numbers may be is for others to check.
func Set(field any, word string) (err error) {
	switch f := field.(type) {
	case *bool:
		*f = true
	case *string:
		if *f = word; word == "" {
			err = errors.New("the word is empty: want at least a letter")
		}
	case *int:
		if *f, err = strconv.Atoi(word); err != nil || *f < 1 {
			err = fmt.Errorf("invalid number %q: want a whole one above 0", word)
		}
	case *float64:
		var plain bool
		if *f, plain = leakybucket.ParseCost(word); !plain {
			err = fmt.Errorf("invalid number %q: want one such as 2 or 0.5", word)
		}
	case **float64:
		*f = new(float64)
		return Set(*f, word)
	case *caddy.Duration:
		duration, wrong := caddy.ParseDuration(word)
		if *f = caddy.Duration(duration); wrong != nil || duration <= 0 {
			err = fmt.Errorf("invalid duration %q: want a number above 0 with its unit ms, s, m, h or d, such as 10s", word)
		}
	default:
		err = fmt.Errorf("%T takes no word", field)
	}
	return err
}

// ParseArg reads the one word after an option into the field that a pointer points to, or nothing
// for a flag.
func ParseArg(d *caddyfile.Dispenser, field any) error {
	option, words, n, takes := d.Val(), d.RemainingArgs(), 1, "one word, in quotes if it has blanks or a #"
	if _, flag := field.(*bool); flag {
		n, takes = 0, "no word"
	}
	switch {
	case len(words) > n:
		return d.Errf("unexpected %q after %s: it takes %s", words[n], option, takes)
	case len(words) < n:
		return d.Errf("%s has no value: it takes %s", option, takes)
	}
	if err := Set(field, strings.Join(words, "")); err != nil {
		return d.Errf("parsing %s: %w", option, err)
	}
	return nil
}

// Options reads a block of options, each at most once but for those that are Repeated. It adds the
// place of each to places, where what stands already has been given, too. After each option that
// has a pointer it calls check. Both may be nil.
func Options(d *caddyfile.Dispenser, where string, fields Fields, check func() error, places map[string][]string) (err error) {
	if places == nil {
		places = make(map[string][]string)
	}
	for nesting := d.Nesting(); err == nil && d.NextBlock(nesting); {
		word := d.Val()
		repeated, _ := fields[word].(Repeated)
		switch {
		case word == "{":
			return d.Errf("unexpected { in %s: the option before it takes no block", where)
		case fields[word] == nil:
			return d.WrapErr(option.Unknown("option", word, " in "+where, slices.Sorted(maps.Keys(fields))))
		case places[word] != nil && repeated == nil:
			return d.Errf("%s is given twice", word)
		}
		places[word] = append(places[word], Place(d))
		if once, special := fields[word].(func() error); special {
			err = once()
		} else if repeated != nil {
			err = repeated()
		} else if err = ParseArg(d, fields[word]); err == nil && check != nil {
			err = Wrap(d, check())
		}
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

// Place returns the current file and line, as errors show them.
func Place(d *caddyfile.Dispenser) string { return strings.TrimPrefix(d.Err("").Error(), ", ") }

// UnmarshalStore sets up a shared store from Caddyfile tokens: its URL, and a block of
// options, which are texts and flags.
func UnmarshalStore(d *caddyfile.Dispenser, url *string, options Fields) error {
	d.Next() // the store's name
	name := d.Val()
	if err := parseSecret(d, url); err != nil {
		return fmt.Errorf("%w: want store %s <url>", err, name)
	}
	for word, field := range options {
		if secret, is := field.(*string); is {
			options[word] = func() error { return parseSecret(d, secret) }
		}
	}
	return Options(d, "store "+name, options, nil, nil)
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
