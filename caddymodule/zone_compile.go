package caddymodule

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	bucketkey "github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

// compile fills in defaults and checks all that can be checked without loading
// matchers and files.
func (z *Zone) compile(plans map[string]leakybucket.Limit) error {
	if !zoneName.MatchString(z.Name) {
		return fmt.Errorf("invalid zone name %q: want letters, digits, _, . and -", z.Name)
	}
	for _, compile := range []func() error{
		z.compileLimit, z.compileNumbers, z.compileWords, z.compileRoutes, z.compileKey,
		func() error { return z.compileTable(plans) }, z.compileCosts, z.compileSettle,
		z.compileWaits, z.compileBlock,
	} {
		if err := compile(); err != nil {
			return fmt.Errorf("zone %q: %w", z.Name, err)
		}
	}
	return nil
}

// about notes which option is looked at, so that errors can tell its line.
func (z *Zone) about(option string, i int) {
	if places := z.places[option]; i < len(places) {
		z.place = places[i]
	}
}

func (z *Zone) compileLimit() error {
	if z.InFlight != 0 && z.Capacity == 0 && z.Leak == "" {
		return z.compileBucketless()
	}
	if z.Capacity == 0 {
		return errors.New("no capacity given: want capacity <number>, how much a bucket holds")
	}
	if z.Leak == "" {
		return errors.New("no leak given: want leak <number>/<s|m|h|d>, how fast a bucket drains")
	}
	leak, err := leakybucket.ParseRate(z.Leak)
	if err != nil {
		return fmt.Errorf("parsing leak: %w", err)
	}
	z.limit = leakybucket.Limit{Capacity: z.Capacity, Leak: leak}
	return z.limit.Validate()
}

func (z *Zone) compileNumbers() error {
	for _, n := range []struct {
		option              string
		value               *int
		standard, min, most int
	}{
		{"ipv4_prefix", &z.IPv4Prefix, 32, 1, 32},
		{"ipv6_prefix", &z.IPv6Prefix, 64, 1, 128},
		{"status", &z.Status, http.StatusTooManyRequests, 400, 599},
		{"enforce", &z.Enforce, 100, 1, 100},
		{"retry_jitter", &z.RetryJitter, 0, 0, 100},
		{"in_flight", &z.InFlight, 0, 0, mostAtOnce},
		{"max_waiting", &z.MaxWaiting, 0, 0, mostAtOnce},
	} {
		if *n.value == 0 {
			*n.value = n.standard
		}
		if *n.value < n.min || *n.value > n.most {
			return fmt.Errorf("invalid %s %d: want a number from %d to %d", n.option, *n.value, n.min, n.most)
		}
	}
	return nil
}

func (z *Zone) compileWords() error {
	for _, w := range []struct {
		option string
		value  *string
		words  []string // the first is the default
	}{
		{"missing_key", &z.MissingKey, []string{missingClientIP, missingShare, missingSkip, missingRefuse}},
		{"unlisted_key", &z.UnlistedKey, []string{"", missingClientIP, missingShare, missingSkip, missingRefuse}},
		{"on_store_error", &z.OnStoreError, append([]string{""}, storePolicies...)},
		{"refuse", &z.Refuse, []string{refusePage, refuseError}},
	} {
		if *w.value == "" {
			*w.value = w.words[0]
		}
		z.about(w.option, 0)
		if !slices.Contains(w.words, *w.value) {
			return fmt.Errorf("invalid %s %q: want one of %s", w.option, *w.value, strings.TrimPrefix(strings.Join(w.words, ", "), ", "))
		}
	}
	z.about("unlisted_key", 0)
	if z.UnlistedKey != "" && len(z.Override) == 0 {
		return errors.New("unlisted_key has no meaning: no override lists a key")
	}
	z.about("enforce", 0)
	if z.Shadow && z.Enforce != 100 {
		return errors.New("enforce and shadow exclude each other: what enforce leaves out is a shadow")
	}
	z.about("page", 0)
	if z.Page != "" && z.Refuse == refuseError {
		return errors.New("page and refuse error exclude each other: error routes write their own page")
	}
	z.about("retry_after", 0)
	switch z.RetryAfter {
	case "":
		z.RetryAfter = retryEmpty
	case retryEmpty, retryFit:
	default:
		floor, err := caddy.ParseDuration(z.RetryAfter)
		if err != nil || floor <= 0 {
			return fmt.Errorf("invalid retry_after %q: want empty, fit, or a duration such as 30s", z.RetryAfter)
		}
		z.retryFloor = floor
	}
	return nil
}

func (z *Zone) compileRoutes() error {
	seen := make(map[string]bool)
	for i, route := range z.Route {
		z.about("route", i)
		switch {
		case route.Name == "" || len(route.Path) == 0:
			return errors.New("incomplete route: want a name and at least one path")
		case route.Name == otherRoute:
			return fmt.Errorf("invalid route name %q: it is what paths count as that match no route", route.Name)
		case seen[route.Name]:
			return fmt.Errorf("route %q is given twice: want all its paths in one line", route.Name)
		}
		seen[route.Name] = true
	}
	return nil
}

func (z *Zone) compileTable(plans map[string]leakybucket.Limit) (err error) {
	config := bucketkey.TableConfig{
		Own: z.limit, Plans: plans, Overrides: z.Override,
		Addresses: z.addresses, IPv4Bits: z.IPv4Prefix, IPv6Bits: z.IPv6Prefix,
	}
	if z.table, err = bucketkey.NewTable(config); err == nil {
		if z.bucketless() && len(z.table.Limits()) > 1 {
			z.about("override", 0)
			return errors.New("an override gives a limit, and the zone has no capacity and leak: want unlimited or deny")
		}
		return nil
	}
	for i := range z.Override { // again, to find out which it is
		config.Overrides = z.Override[:i+1]
		if _, wrong := bucketkey.NewTable(config); wrong != nil {
			z.about("override", i)
			break
		}
	}
	return err
}
