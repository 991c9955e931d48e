package caddymodule

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// defaultCost is what a request costs that no line says otherwise of, and one
// whose cost is no plain number.
const defaultCost = 1

// Cost says what some requests cost.
type Cost struct {
	// Which requests. Default: all, which must then be the last line.
	Match caddyhttp.RawMatcherSets `json:"match,omitempty" caddy:"namespace=http.matchers"`

	// A number, or a placeholder that holds one when the request comes, such as
	// `{http.vars.cost}`. A value that is no plain decimal number (digits, and
	// perhaps a point and digits) counts as 1. Required.
	Value string `json:"value,omitempty"`

	matchers    caddyhttp.MatcherSets
	placeholder string
	constant    float64
}

// compile reads the value. Constants are checked against the zone's limit.
func (c *Cost) compile(limit leakybucket.Limit) error {
	if name, ok := strings.CutPrefix(c.Value, "{"); ok {
		name, ok = strings.CutSuffix(name, "}")
		if !ok || strings.ContainsAny(name, "{}") {
			return fmt.Errorf("invalid cost %q: want a number or a single {placeholder}", c.Value)
		}
		if err := checkPlaceholder(name); err != nil {
			return fmt.Errorf("placeholder {%s}: %w", name, err)
		}
		c.placeholder = name
		return nil
	}
	constant, plain := leakybucket.ParseCost(c.Value)
	if !plain {
		return fmt.Errorf("invalid cost %q: want a number such as 2 or 0.5, or a {placeholder}", c.Value)
	}
	c.constant = constant
	return limit.ValidateCost(constant)
}

func (z *Zone) compileCosts() error {
	for i := range z.Cost {
		z.about("cost", i)
		if err := z.Cost[i].compile(z.limit); err != nil {
			return err
		}
		if len(z.Cost[i].Match) == 0 && i < len(z.Cost)-1 {
			return fmt.Errorf("cost %s: a line for all requests must come last", z.Cost[i].Value)
		}
	}
	if z.hasDefaultCost() {
		z.about("capacity", 0)
		if err := z.limit.ValidateCost(defaultCost); err != nil {
			return fmt.Errorf("default cost: %w: give another capacity, or a cost for all requests", err)
		}
	}
	return nil
}

// hasDefaultCost reports whether a request can get by all lines.
func (z *Zone) hasDefaultCost() bool {
	return len(z.Cost) == 0 || len(z.Cost[len(z.Cost)-1].Match) > 0
}

// constants returns every cost that is known before a request comes.
func (z *Zone) constants() []float64 {
	var all []float64
	if z.hasDefaultCost() {
		all = append(all, defaultCost)
	}
	for i := range z.Cost {
		if z.Cost[i].placeholder == "" {
			all = append(all, z.Cost[i].constant)
		}
	}
	return all
}

// costOf returns what a request costs, by the first line that matches.
func (z *Zone) costOf(r *http.Request, repl *caddy.Replacer, limit leakybucket.Limit) (float64, error) {
	for i := range z.Cost {
		c := &z.Cost[i]
		if match, err := c.matchers.AnyMatchWithError(r); err != nil {
			return 0, err
		} else if !match {
			continue
		}
		if c.placeholder == "" {
			return limit.Cost(c.constant), nil
		}
		text, _ := repl.GetString(c.placeholder)
		if cost, plain := leakybucket.ParseCost(text); plain {
			return limit.Cost(cost), nil
		}
		break
	}
	return limit.Cost(defaultCost), nil
}

func (c *Cost) load(ctx caddy.Context) (err error) {
	c.matchers, err = loadMatchers(ctx, c, "Match", c.Match)
	return err
}

// loadMatchers provisions the matcher sets in a field of a module.
func loadMatchers(ctx caddy.Context, module any, field string, raw caddyhttp.RawMatcherSets) (caddyhttp.MatcherSets, error) {
	var sets caddyhttp.MatcherSets
	if len(raw) == 0 {
		return sets, nil
	}
	for _, set := range raw {
		if len(set) == 0 {
			return nil, errors.New("loading matchers: a set without matchers would match everything")
		}
	}
	loaded, err := ctx.LoadModule(module, field)
	if err != nil {
		return nil, fmt.Errorf("loading matchers: %w", err)
	}
	return sets, sets.FromInterface(loaded)
}
