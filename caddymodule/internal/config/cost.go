package config

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/dustin/go-humanize"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/form"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/tokens"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// Cost is the cost of some requests.
type Cost struct {
	// Which requests have this cost. Default: all. A cost for all requests must
	// be the last one.
	Match caddyhttp.RawMatcherSets `json:"match,omitempty" caddy:"namespace=http.matchers"`

	// The cost: a number, a placeholder such as `{http.vars.cost}`, `body_items` or
	// `body_bytes`. Required. Numbers may be fractions. A placeholder whose value
	// is no plain decimal number costs 1. `body_items` is the length of a JSON
	// array, or how often a form field is repeated. `body_bytes` is the size of the
	// body.
	Value string `json:"value,omitempty"`

	// The array that `body_items` counts, such as `data.rows`, or the name of the
	// form field. Default: the whole body is the array.
	Path string `json:"path,omitempty"`

	// The number of bytes that cost 1, such as `1KiB`. Required for `body_bytes`.
	Unit string `json:"unit,omitempty"`
}

// ReadBody says how much of a body is read for costs.
type ReadBody struct {
	// How long a request body may be that is read, such as `64KiB`. Default: 64KiB. A longer
	// body goes on unread.
	Most string `json:"most,omitempty"`

	// The cost of a request whose body was not read or not understood, if its cost comes
	// from there. Default: the capacity, so that such a request passes only into an empty
	// bucket. Required if client_ip is no part of the key, and then at most a tenth of the
	// capacity: with one request, anybody could else fill a bucket that others share.
	Else string `json:"else,omitempty"`
}

// mostReadBody is in bytes.
const mostReadBody = 16 << 20

// compile compiles how much of a body is read. It comes after the key and the costs.
// given says that the zone has read_body.
func (b *ReadBody) compile(r *limit.Rule, given bool) error {
	costing := -1 // the last cost that comes from the body
	for i := range r.Cost.Lines {
		if r.Cost.Lines[i].FromBody() {
			costing = i
		}
	}
	if costing < 0 {
		return refuse("read_body", given, "read_body has no meaning: no cost comes from the body")
	}
	size, err := parseSize(b.Most, mostReadBody)
	if err != nil {
		return About("read_body", 0, fmt.Errorf("parsing read_body: %w", err))
	}
	r.Cost.MaxBody = size
	most, shared := r.Limit.Capacity, !r.Key.HasAddress()
	if shared {
		most /= 10
	}
	switch {
	case b.Else == "" && shared:
		return About("cost", costing, fmt.Errorf("one body that cannot be read would fill a bucket that clients share, since client_ip is no part of the key: want read_body %s else %v, or at most a tenth of the capacity", b.Most, most))
	case b.Else == "":
		return nil
	}
	var unread float64
	if err = tokens.Set(&unread, b.Else); err == nil {
		err = r.Limit.ValidateCost(unread)
	}
	r.Cost.Unread = &unread
	switch {
	case err != nil:
	case unread == 0:
		err = errors.New("0 lets clients hide costs in bodies that cannot be read: want a number above 0")
	case unread > most:
		err = fmt.Errorf("%s is too much for a bucket that clients share, since client_ip is no part of the key: want at most a tenth of the capacity, such as read_body %s else %v", b.Else, b.Most, most)
	}
	if err != nil {
		return About("read_body else", 0, fmt.Errorf("read_body ... else: %w", err))
	}
	return nil
}

// compile returns the line that requests meet. It checks constants against the
// zone's limit.
func (c *Cost) compile(limit leakybucket.Limit) (line limit.CostLine, err error) {
	switch {
	case c.Path != "" && c.Value != "body_items":
		return line, fmt.Errorf("cost %s takes no path: unexpected %q", c.Value, c.Path)
	case (c.Unit != "") != (c.Value == "body_bytes"):
		return line, fmt.Errorf("cost %s and the unit %q do not go together: want body_bytes <unit>, such as body_bytes 1KiB", c.Value, c.Unit)
	}
	switch {
	case c.Value == "body_items":
		line.Source = limit.BodyItems
		line.Path = c.Path
		_, err = new(form.Plan).Array(c.Path)
		return line, err
	case c.Value == "body_bytes":
		line.Source = limit.BodyBytes
		line.Unit, err = parseUnit(c.Unit)
		return line, err
	case strings.HasPrefix(c.Value, "{"):
		line.Source = limit.Placeholder
		line.Placeholder, err = parsePlaceholder(c.Value)
		return line, err
	}
	constant, plain := leakybucket.ParseCost(c.Value)
	if !plain {
		return line, fmt.Errorf("invalid cost %q: want a number such as 2 or 0.5, a {placeholder}, body_items or body_bytes", c.Value)
	}
	line.Constant = constant
	return line, limit.ValidateCost(constant)
}

func (c *Cost) checkMatch() error {
	err := CheckMatcherSets(c.Match)
	if n, plain := leakybucket.ParseCost(c.Value); !plain || n > 1 {
		for _, set := range c.Match {
			err = cmp.Or(err, checkTails(set))
		}
	}
	return err
}

func parsePlaceholder(value string) (string, error) {
	name := strings.TrimSuffix(strings.TrimPrefix(value, "{"), "}")
	if strings.ContainsAny(name, "{}") || len(name) != len(value)-2 {
		return "", fmt.Errorf("invalid cost %q: want a number or a single {placeholder}", value)
	}
	if err := checkPlaceholder(name); err != nil {
		return "", fmt.Errorf("placeholder {%s}: %w", name, err)
	}
	return name, nil
}

func parseUnit(text string) (float64, error) {
	unit, err := humanize.ParseBytes(text)
	if err != nil || unit == 0 {
		return 0, fmt.Errorf("invalid unit %q: want a number of bytes, such as 1KiB", text)
	}
	return float64(unit), nil
}

// compileCosts compiles the lines of cost. It comes after the limit. limited says that
// something else limits requests that cost nothing.
func compileCosts(costs []Cost, r *limit.Rule, limited bool) error {
	cost := &r.Cost
	cost.ByDefault = len(costs) == 0 || len(costs[len(costs)-1].Match) > 0
	byDefault := cost.ByDefault
	for i := range costs {
		line, err := costs[i].compile(r.Limit)
		err = cmp.Or(err, costs[i].checkMatch())
		if err == nil && len(costs[i].Match) == 0 && i < len(costs)-1 {
			err = fmt.Errorf("cost %s: a line for all requests must come last", costs[i].Value)
		}
		if err != nil {
			return About("cost", i, err)
		}
		byDefault = byDefault || line.Source == limit.Placeholder
		cost.Lines = append(cost.Lines, line)
	}
	free := func(l limit.CostLine) bool { return l.Source == limit.Constant && l.Constant == 0 }
	if !byDefault && !limited && !slices.ContainsFunc(cost.Lines, func(l limit.CostLine) bool { return !free(l) }) {
		return About("cost", len(costs)-1, errors.New("cost 0 for all requests charges nothing, so the zone limits nothing: want another cost, or settle"))
	}
	if byDefault {
		if err := r.Limit.ValidateCost(limit.DefaultCost); err != nil {
			return About("limit", 0, fmt.Errorf("default cost: %w: want another capacity, or a constant cost for all requests", err))
		}
	}
	for _, one := range constants(r) {
		cost.Most = max(cost.Most, one)
	}
	return nil
}

func loadCosts(ctx caddy.Context, costs []Cost, r *limit.Rule) (err error) {
	for i := range costs {
		if r.Cost.Lines[i].Match, err = LoadMatchers(ctx, &costs[i], "Match", costs[i].Match); err != nil {
			return err
		}
	}
	return nil
}

// constants returns every cost of a zone that is known before a request comes. The
// default cost is one of them if no line is for all requests.
func constants(r *limit.Rule) (all []float64) {
	if r.Cost.ByDefault {
		all = append(all, limit.DefaultCost)
	}
	for _, l := range r.Cost.Lines {
		if l.Source == limit.Constant {
			all = append(all, l.Constant)
		}
	}
	return all
}

// leastPlainSize is the least size without a unit. Less is hardly meant as bytes.
const leastPlainSize = 512

// parseSize reads a size of up to most bytes, which are whole MiB.
func parseSize(word string, most uint64) (int64, error) {
	size, err := humanize.ParseBytes(word)
	if n, plain := leakybucket.ParseCost(word); plain && 0 < n && n < leastPlainSize {
		return 0, fmt.Errorf("invalid size %q: it has no unit: did you mean %sKiB?", word, word)
	}
	if err != nil || size < 1 || size > most {
		return 0, fmt.Errorf("invalid size %q: want one such as 64KiB, up to %dMiB", word, most>>20)
	}
	return int64(size), nil
}
