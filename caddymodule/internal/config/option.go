package config

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
)

// MostAtOnce is the most slots, places in a queue and workers that a zone may have.
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

// within refuses a number that an option may not have.
func within(option string, n, least, most int) error {
	if least <= n && n <= most {
		return nil
	}
	return About(option, 0, fmt.Errorf("invalid %s %d: want a number from %d to %d", option[strings.LastIndex(option, " ")+1:], n, least, most))
}

// longest is for how long requests may be told to wait. More is hardly meant.
const longest = caddy.Duration(24 * time.Hour)

// withinADay refuses a wait of more than a day, which is hardly meant.
func withinADay(option string, d caddy.Duration) error {
	if 0 <= d && d <= longest {
		return nil
	}
	return About(option, 0, fmt.Errorf("invalid %s %v: want a duration of at most a day, such as 8s", option[strings.LastIndex(option, " ")+1:], time.Duration(d)))
}

// copyOf returns a copy of a part, or an empty one.
func copyOf[T any](part *T) (full T) {
	if part != nil {
		full = *part
	}
	return full
}
