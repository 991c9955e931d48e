package config

import (
	"errors"
	"strconv"

	"golang.org/x/time/rate"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// Words of refusal log.
const (
	logAll = "all"
	logOff = "off"
)

// ParseLogRefused returns what limits the refusals in the access log, in bursts of those of
// a second. It is nil if all are logged.
func ParseLogRefused(text string) (*rate.Limiter, error) {
	switch text {
	case logAll:
		return nil, nil
	case logOff:
		return rate.NewLimiter(0, 0), nil
	}
	lines, err := leakybucket.ParseRate(text)
	if err != nil || lines <= 0 {
		return nil, errors.New("invalid log " + strconv.Quote(text) + ": want all, off or a rate such as 10/s")
	}
	return rate.NewLimiter(rate.Limit(lines), max(1, int(lines))), nil
}
