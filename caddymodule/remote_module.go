package caddymodule

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// connections keeps remote stores over reloads: a new config whose options are
// the same goes on with the connections of the last.
var connections = caddy.NewUsagePool()

// A Connection is a store module's hold on a remote store.
type Connection struct{ key string }

// Connect finds the remote store of a name and its options, or opens it. The
// options may be secret. What it returns must be released.
func Connect(name string, options []string, open func() (RemoteStore, error)) (*Remote, Connection, error) {
	text, err := json.Marshal(options)
	if err != nil {
		return nil, Connection{}, err
	}
	c := Connection{key: fmt.Sprintf("%s %x", name, sha256.Sum256(text))}
	found, _, err := connections.LoadOrNew(c.key, func() (caddy.Destructor, error) {
		store, err := open()
		if err != nil {
			return nil, err
		}
		return NewRemote(name, store), nil
	})
	if err != nil {
		return nil, Connection{}, err
	}
	return found.(*Remote), c, nil
}

// Release lets go of the store. It closes when nobody uses it any more.
func (c Connection) Release() error {
	if c.key == "" {
		return nil // it was never opened
	}
	_, err := connections.Delete(c.key)
	return err
}

// FillIn fills in the placeholders in options of a store, such as {env.X} and
// {file.X}. One without a value is an error, which shows no value.
func FillIn(options ...string) ([]string, error) {
	repl := caddy.NewReplacer()
	filled := make([]string, len(options))
	for i, option := range options {
		var err error
		if filled[i], err = repl.ReplaceOrErr(option, true, true); err != nil {
			return nil, fmt.Errorf("filling in placeholders: %w", err)
		}
	}
	return filled, nil
}

// UnmarshalStore sets up a remote store from Caddyfile tokens: its URL, and a
// block of options that each are a word, or a flag.
func UnmarshalStore(d *caddyfile.Dispenser, url *string, words map[string]*string, flags map[string]*bool) error {
	d.Next() // the store's name
	name := d.Val()
	if err := parseSecret(d, url); err != nil {
		return fmt.Errorf("%w: want store %s <url>", err, name)
	}
	seen := make(map[string]bool)
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		option := d.Val()
		if err := once(d, seen, option); err != nil {
			return err
		}
		var err error
		if word := words[option]; word != nil {
			err = parseSecret(d, word)
		} else if flag := flags[option]; flag != nil {
			err = parseFlag(d, flag)
		} else {
			known := slices.Sorted(maps.Keys(words))
			known = append(known, slices.Sorted(maps.Keys(flags))...)
			err = unrecognized(d, "store "+name, "one of "+strings.Join(known, ", "))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// parseSecret reads the one word after an option, which no error shows.
func parseSecret(d *caddyfile.Dispenser, target *string) error {
	option, words := d.Val(), d.RemainingArgs()
	if len(words) != 1 || words[0] == "" {
		return d.Errf("%s is not followed by one word: want one that is not empty, in quotes if it holds spaces", option)
	}
	*target = words[0]
	return nil
}
