package config

import (
	"fmt"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/rule"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// compileLimit compiles the limit, which a zone with in_flight need not have.
func compileLimit(limit string, r *rule.Rule) (err error) {
	if limit == "" {
		return nil
	}
	if r.Limit, err = leakybucket.ParseLimit(limit); err != nil {
		err = fmt.Errorf("parsing limit: %w", err)
	}
	return About("limit", 0, err)
}

// ParsePlans parses the named limits.
func ParsePlans(plans map[string]string) (map[string]leakybucket.Limit, error) {
	limits := make(map[string]leakybucket.Limit)
	for name, text := range plans {
		switch {
		case !zoneName.MatchString(name):
			return nil, fmt.Errorf("invalid plan name %q: want letters, digits, _, . and -", name)
		case name == "unlimited" || name == "deny" || name == "as":
			return nil, fmt.Errorf("invalid plan name %q: the word has a meaning of its own in overrides", name)
		}
		limit, err := leakybucket.ParseLimit(text)
		if err != nil {
			return nil, fmt.Errorf("plan %q: %w", name, err)
		}
		limits[name] = limit
	}
	return limits, nil
}
