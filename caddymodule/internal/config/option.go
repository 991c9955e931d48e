package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/text"
)

// MostAtOnce is the most places in a queue that there may be.
const MostAtOnce = 1_000_000

// switchOff is the word that switches something off.
const switchOff = "off"

// An OptionError is about one option of a zone. It tells the Caddyfile adapter which
// line is wrong.
type OptionError struct {
	Option string
	At     int // index, for options that may be repeated
	error
}

// Unwrap returns the error without the option.
func (e *OptionError) Unwrap() error { return e.error }

// About returns err as an error about an option, unless it is about one already. It returns
// nil if err is nil.
func About(option string, at int, err error) error {
	if _, already := errors.AsType[*OptionError](err); err == nil || already {
		return err
	}
	return &OptionError{option, at, err}
}

// longest is for how long requests may be told to wait. More is hardly meant.
const longest = 24 * time.Hour

// Within refuses a number or a duration that an option may not have.
func Within[N int | time.Duration](option string, n, least, most N) error {
	if least <= n && n <= most {
		return nil
	}
	return About(option, 0, fmt.Errorf("invalid %s %v: want one from %v to %v", lastOf(option), n, least, most))
}

// refuse refuses an option if something is wrong with it.
func refuse(option string, wrong bool, why string, about ...any) error {
	if !wrong {
		return nil
	}
	return About(option, 0, fmt.Errorf(why, about...))
}

// among refuses a word that may not stand after an option. The option may be left out.
func among(option, word string, known ...string) error {
	if word == "" || slices.Contains(known, word) {
		return nil
	}
	return About(option, 0, text.Unknown("word", word, " after "+lastOf(option), known))
}

// lastOf returns the last word of an option such as "delay wait".
func lastOf(option string) string { return option[strings.LastIndex(option, " ")+1:] }

// orNew returns a copy of what was given, or a zero value.
func orNew[T any](given *T) *T {
	part := new(T)
	if given != nil {
		*part = *given
	}
	return part
}
