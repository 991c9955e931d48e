package tokens

import (
	"fmt"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// UnmarshalStore sets up a shared store from Caddyfile tokens: its URL, and a block of
// options. words are the options with one word, flags those without. try provisions a copy
// of the store and cleans it up, so that the errors of that have a line. It is not called if
// there are placeholders, whose values only the Caddy that runs may have.
func UnmarshalStore(d *caddyfile.Dispenser, url *string, words map[string]*string, flags map[string]*bool, try func() error) error {
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
	if err := try(); err != nil {
		return fmt.Errorf("store %s: %w, %s", name, err, here)
	}
	return nil
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
