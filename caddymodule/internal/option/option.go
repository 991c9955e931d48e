// Package option is what the options of zones, of in_flight and of stores have in common: reading
// them from a Caddyfile, errors with their place, names and sizes, which word was meant by one that
// is misspelled, and request matchers, which are checked and loaded here. Begin with [Read], [About]
// and [LoadMatchers].
package option

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/dustin/go-humanize"
	"github.com/hbollon/go-edlib"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/cookie"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/sharedstore"
)

// MostAtOnce is the most places in a queue that there may be.
const MostAtOnce = 1_000_000

// Off is the word that switches something off.
const Off = "off"

// An Error is about one option. It tells the Caddyfile adapter which
// line is wrong.
type Error struct {
	Option string
	At     int // index, for options that may be repeated
	error
}

// Unwrap returns the error without the option.
func (e *Error) Unwrap() error { return e.error }

// About returns err as an error about an option, if there is one, unless it is about one already.
// It returns nil if err is nil.
func About(option string, at int, err error) error {
	if _, already := errors.AsType[*Error](err); err == nil || already || option == "" {
		return err
	}
	return &Error{option, at, err}
}

// Longest is for how long requests may be told to wait. More is hardly meant.
const Longest = 24 * time.Hour

// Within refuses a number or a duration that an option may not have.
func Within[N int | time.Duration](option string, n, least, most N) error {
	return Refuse(option, n < least || n > most, "invalid %s %v: want one from %v to %v", lastOf(option), n, least, most)
}

// Refuse refuses an option if something is wrong with it.
func Refuse(option string, wrong bool, why string, about ...any) error {
	if !wrong {
		return nil
	}
	return About(option, 0, fmt.Errorf(why, about...))
}

// Among refuses a word that may not stand after an option. The option may be left out.
func Among(option, word string, known ...string) error {
	return Refuse(option, word != "" && !slices.Contains(known, word), "%w", Unknown("word", word, " after "+lastOf(option), known))
}

// lastOf returns the last word of an option such as "delay wait".
func lastOf(option string) string { return option[strings.LastIndex(option, " ")+1:] }

// CopyOf returns a copy of what was given, or a zero value.
func CopyOf[T any](given *T) *T {
	part := new(T)
	if given != nil {
		*part = *given
	}
	return part
}

var validName = regexp.MustCompile(`^[A-Za-z0-9_.-]+$`)

// CheckName refuses what is no name of something of this kind.
func CheckName(kind, name string) error {
	return cmp.Or(
		Refuse("", len(name) > 1 && strings.HasSuffix(name, "{"), "invalid %s name %q: want a blank before the brace", kind, name),
		Refuse("", !validName.MatchString(name), "invalid %s name %q: want letters, digits, _, . and -, such as pages", kind, name),
	)
}

// leastPlainSize is the least size without a unit. Less is hardly meant as bytes.
const leastPlainSize = 512

// ParseSize reads a size of up to most bytes, which are whole MiB.
func ParseSize(word string, most uint64) (int64, error) {
	size, err := humanize.ParseBytes(word)
	n, plain := leakybucket.ParseCost(word)
	return int64(size), cmp.Or(
		Refuse("", plain && 0 < n && n < leastPlainSize, "invalid size %q: it has no unit: want %[1]sKiB or %[1]sMiB", word),
		Refuse("", err != nil || size < 1 || size > most, "invalid size %q: want one such as 64KiB, up to %dMiB", word, most>>20),
	)
}

// ParseUnit reads the number of bytes that cost 1.
func ParseUnit(text string) (float64, error) {
	unit, err := humanize.ParseBytes(text)
	return float64(unit), Refuse("", err != nil || unit == 0, "invalid unit %q: want a number of bytes, such as 1KiB", text)
}

// Canonical returns JSON without the fields of some names. Matchers are raw JSON: a map forgets
// their order and white space.
func Canonical(raw []byte, without ...string) string {
	var value map[string]any
	_ = json.Unmarshal(raw, &value)
	for _, name := range without {
		delete(value, name)
	}
	raw, _ = json.Marshal(value)
	return string(raw)
}

// StorePolicies are the words after on_store_error.
var StorePolicies = []string{sharedstore.Local.String(), sharedstore.Allow.String(), sharedstore.Deny.String()}

// CheckLogInCookie refuses a pattern that matches no cookie, or any.
func CheckLogInCookie(option, pattern string) error {
	return Refuse(option, !cookie.ValidPattern(pattern), "invalid cookie %q in %s: want the name, or a pattern such as wordpress_logged_in_*, of one that nothing but a login sets", pattern, option)
}

// mostListed is how many known words an error lists: a host with many sites has thousands of zones.
const mostListed = 40

// Unknown reports an unknown word, with the nearest known one.
func Unknown(kind, word, where string, known []string) error {
	if meant := Nearest(word, known); meant != "" {
		return fmt.Errorf("unknown %s %q%s: did you mean %s?", kind, word, where, meant)
	}
	if len(known) == 1 {
		return fmt.Errorf("unknown %s %q%s: want %s", kind, word, where, known[0])
	}
	if more := len(known) - mostListed; more > 0 {
		known = append(slices.Clone(known[:mostListed]), fmt.Sprintf("and %d more", more))
	}
	return fmt.Errorf("unknown %s %q%s: want one of %s", kind, word, where, strings.Join(known, ", "))
}

// Nearest returns the known word of which a word is a misspelling or the beginning, or
// "". A misspelling has at most one edit in three letters.
func Nearest(word string, known []string) string {
	best, least := "", max(1, len(word)/3)+1
	if i := slices.IndexFunc(known, func(k string) bool { return len(word) > 4 && strings.HasPrefix(k, word+"_") }); i >= 0 {
		return known[i]
	}
	for _, candidate := range known {
		if n := edlib.OSADamerauLevenshteinDistance(strings.ToLower(word), candidate); n < least {
			best, least = candidate, n
		}
	}
	return best
}

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
		*f, err = word, Refuse("", word == "", "the word is empty: want at least a letter")
	case *int:
		n, wrong := strconv.Atoi(word)
		*f, err = n, Refuse("", wrong != nil || n < 1, "invalid number %q: want a whole one above 0", word)
	case *float64:
		n, plain := leakybucket.ParseCost(word)
		*f, err = n, Refuse("", !plain, "invalid number %q: want one such as 2 or 0.5", word)
	case **float64:
		*f = new(float64)
		return Set(*f, word)
	case *caddy.Duration:
		d, wrong := caddy.ParseDuration(word)
		*f, err = caddy.Duration(d), Refuse("", wrong != nil || d <= 0, "invalid duration %q: want a number above 0 with its unit ms, s, m, h or d, such as 10s", word)
	default:
		err = fmt.Errorf("%T takes no word", field)
	}
	return err
}

// ParseArg reads the one word after an option into the field that a pointer points to, or nothing
// for a flag. Errors don't show texts, which may be secrets.
func ParseArg(d *caddyfile.Dispenser, field any) error {
	option, words, n, takes := d.Val(), d.RemainingArgs(), 1, "one word, in quotes if it has blanks or a #"
	if _, flag := field.(*bool); flag {
		n, takes = 0, "no word"
	}
	if len(words) != n {
		return d.Errf("wrong number of words after %s: it takes %s", option, takes)
	}
	if err := Set(field, strings.Join(words, "")); err != nil {
		return d.Errf("parsing %s: %w", option, err)
	}
	return nil
}

// Read reads a block of options, each at most once but for those that are Repeated. It adds the
// place of each to places, where what stands already has been given, too. It may be nil.
func Read(d *caddyfile.Dispenser, where string, fields Fields, places map[string][]string) (err error) {
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
			return d.WrapErr(Unknown("option", word, " in "+where, slices.Sorted(maps.Keys(fields))))
		case places[word] != nil && repeated == nil:
			return d.Errf("%s is given twice", word)
		}
		places[word] = append(places[word], Place(d))
		if once, special := fields[word].(func() error); special {
			err = once()
		} else if repeated != nil {
			err = repeated()
		} else {
			err = ParseArg(d, fields[word])
		}
	}
	return err
}

// Place returns the current file and line, as errors show them.
func Place(d *caddyfile.Dispenser) string { return strings.TrimPrefix(d.Err("").Error(), ", ") }

// At adds to an error the place of the option that is wrong, or that of the whole. It returns nil for
// nil.
func At(places map[string][]string, whole string, err error) error {
	if err == nil {
		return nil
	}
	if wrong, is := errors.AsType[*Error](err); is {
		first, _, _ := strings.Cut(wrong.Option, " ")
		for _, name := range []string{first, wrong.Option} {
			if of := places[name]; wrong.At < len(of) {
				whole = of[wrong.At]
			}
		}
	}
	return fmt.Errorf("%w, %s", err, whole)
}

// UnmarshalStore sets up a shared store from Caddyfile tokens: its URL, and a block of options.
func UnmarshalStore(d *caddyfile.Dispenser, url *string, options Fields) error {
	d.Next() // the store's name
	store := "store " + d.Val()
	if err := ParseArg(d, url); err != nil {
		return fmt.Errorf("%w: want %s <url>", err, store)
	}
	return Read(d, store, options, nil)
}
