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
		return d.Errf("nothing stands after %s: want one word", option)
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

// parseLeak checks a rate and keeps it as it was written, since JSON has it so.
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

func parseSize(word string) (int64, error) {
	size, err := humanize.ParseBytes(word)
	if err != nil || size < 1 || size > largestMaxBody {
		return 0, fmt.Errorf("invalid size %q: want one such as 64KiB, up to 16MiB", word)
	}
	return int64(size), nil
}

func parsePolicy(word string) (string, error) {
	if !slices.Contains(storePolicies, word) {
		return "", fmt.Errorf("invalid policy %q: want local, allow or deny", word)
	}
	return word, nil
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

func once(d *caddyfile.Dispenser, seen map[string]bool, option string) error {
	if seen[option] {
		return d.Errf("%s is given twice", option)
	}
	seen[option] = true
	return nil
}

// theirWords are what other limiters call things.
var theirWords = map[string]string{
	"rate":     "leak <n>/<s|m|h|d> is how fast a bucket drains",
	"burst":    "capacity <n> is how much a bucket holds; nginx's burst=10 is capacity 11",
	"events":   "capacity <n> is how many may come at once, and leak <n>/<s|m|h|d> how many in the long run",
	"requests": "capacity <n> is how many may come at once, and leak <n>/<s|m|h|d> how many in the long run",
	"limit":    "capacity <n> is how much a bucket holds, and leak <n>/<s|m|h|d> how fast it drains",
	"window":   "a leaky bucket has no window; leak <n>/<s|m|h|d> is how fast it drains",
	"period":   "a leaky bucket has no period; leak <n>/<s|m|h|d> is how fast it drains",
}

func unrecognized(d *caddyfile.Dispenser, where, want string) error {
	if hint, known := theirWords[d.Val()]; known {
		return d.Errf("unrecognized option %q in %s: %s", d.Val(), where, hint)
	}
	return d.Errf("unrecognized option %q in %s: want %s", d.Val(), where, want)
}

// place says where the dispenser is, in the words of its errors.
func place(d *caddyfile.Dispenser) string { return strings.TrimPrefix(d.Err("").Error(), ", ") }
