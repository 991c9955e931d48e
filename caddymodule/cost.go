package caddymodule

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/dustin/go-humanize"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/body"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// defaultCost is what a request costs that no line says otherwise of, and one
// whose cost is no plain number.
const defaultCost = 1

// Cost says what some requests cost.
type Cost struct {
	// Which requests. Default: all, which must then be the last line.
	Match caddyhttp.RawMatcherSets `json:"match,omitempty" caddy:"namespace=http.matchers"`

	// A number; or a placeholder that holds one when the request comes, such as
	// `{http.vars.cost}`, where what is no plain decimal number (digits, and
	// perhaps a point and digits) counts as 1; or `body_items`, the length of a
	// JSON array or how often a form field is repeated; or `body_bytes`, the
	// size of the body. Required.
	Value string `json:"value,omitempty"`

	// Where body_items finds the array, such as `data.rows`, or the name of the
	// form field. Default: the whole body.
	Path string `json:"path,omitempty"`

	// How many bytes cost 1, such as `1KiB`. Required for body_bytes.
	Unit string `json:"unit,omitempty"`

	matchers caddyhttp.MatcherSets
	source   costSource
	constant float64
	// name of the placeholder, path of the items, or bytes of the unit
	placeholder string
	path        body.Path
	unit        float64
}

type costSource uint8

const (
	costConstant costSource = iota
	costPlaceholder
	costItems
	costBytes
)

// compile reads the value. Constants are checked against the zone's limit.
func (c *Cost) compile(limit leakybucket.Limit) (err error) {
	switch {
	case c.Path != "" && c.Value != "body_items":
		return fmt.Errorf("cost %s takes no path, and has %q", c.Value, c.Path)
	case (c.Unit != "") != (c.Value == "body_bytes"):
		return fmt.Errorf("cost %s and the unit %q do not go together: want body_bytes <unit>, such as body_bytes 1KiB", c.Value, c.Unit)
	}
	switch {
	case c.Value == "body_items":
		c.source = costItems
		c.path, err = body.ParsePath(c.Path)
		return err
	case c.Value == "body_bytes":
		c.source = costBytes
		c.unit, err = parseUnit(c.Unit)
		return err
	case strings.HasPrefix(c.Value, "{"):
		c.source = costPlaceholder
		c.placeholder, err = parsePlaceholder(c.Value)
		return err
	}
	constant, plain := leakybucket.ParseCost(c.Value)
	if !plain {
		return fmt.Errorf("invalid cost %q: want a number such as 2 or 0.5, a {placeholder}, body_items or body_bytes", c.Value)
	}
	c.constant = constant
	return limit.ValidateCost(constant)
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

func (z *Zone) compileCosts() error {
	fromBody, byDefault := z.formKey, z.hasDefaultCost()
	for i := range z.Cost {
		z.about("cost", i)
		if err := z.Cost[i].compile(z.limit); err != nil {
			return err
		}
		if len(z.Cost[i].Match) == 0 && i < len(z.Cost)-1 {
			return fmt.Errorf("cost %s: a line for all requests must come last", z.Cost[i].Value)
		}
		fromBody = fromBody || z.Cost[i].source >= costItems
		byDefault = byDefault || z.Cost[i].source == costPlaceholder
	}
	if byDefault && !z.bucketless() {
		z.about("capacity", 0)
		if err := z.limit.ValidateCost(defaultCost); err != nil {
			return fmt.Errorf("default cost: %w: give another capacity, or a cost for all requests that is no placeholder", err)
		}
	}
	z.about("unread_body_cost", 0)
	z.about("max_body", 0)
	if !fromBody && (z.MaxBody != 0 || z.UnreadBodyCost != nil) {
		return errors.New("max_body and unread_body_cost have no meaning: neither a cost nor the key is taken from the body")
	}
	if z.MaxBody == 0 {
		z.MaxBody = defaultMaxBody
	}
	if z.MaxBody < 1 || z.MaxBody > largestMaxBody {
		return fmt.Errorf("invalid max_body %d: want from 1 byte to 16MiB", z.MaxBody)
	}
	if z.UnreadBodyCost != nil {
		z.about("unread_body_cost", 0)
		if err := z.limit.ValidateCost(*z.UnreadBodyCost); err != nil {
			return fmt.Errorf("unread_body_cost: %w", err)
		}
	}
	if costs := z.constants(); len(costs) > 0 {
		z.dearest = slices.Max(costs)
	}
	return nil
}

// hasDefaultCost reports whether a request can get by all lines.
func (z *Zone) hasDefaultCost() bool {
	return len(z.Cost) == 0 || len(z.Cost[len(z.Cost)-1].Match) > 0
}

// constants returns every cost that is known before a request comes.
func (z *Zone) constants() []float64 {
	if z.bucketless() {
		return nil
	}
	var all []float64
	if z.hasDefaultCost() {
		all = append(all, defaultCost)
	}
	for i := range z.Cost {
		if z.Cost[i].source == costConstant {
			all = append(all, z.Cost[i].constant)
		}
	}
	return all
}

// costLine returns the first cost that is for a request, or nil if there is
// none.
func (z *Zone) costLine(s *subject) (*Cost, error) {
	for i := range z.Cost {
		if match, err := z.Cost[i].matchers.AnyMatchWithError(s.r); err != nil || match {
			return &z.Cost[i], err
		}
	}
	return nil, nil
}

// wantsBody reports whether the body must be looked at to know the cost. A size
// that the client gave need not be measured: the server holds it to that.
func (c *Cost) wantsBody(s *subject) bool {
	if c == nil || s.looked {
		return false
	}
	return c.source == costItems || c.source == costBytes && s.r.ContentLength < 0
}

// of returns what a request costs in a zone. Before the body was looked at, that
// is the least it can cost.
func (c *Cost) of(s *subject, z *Zone, limit leakybucket.Limit) float64 {
	if c == nil {
		return limit.Cost(defaultCost)
	}
	switch c.source {
	case costConstant:
		return limit.Cost(c.constant)
	case costPlaceholder:
		text, _ := s.repl.GetString(c.placeholder)
		if cost, plain := leakybucket.ParseCost(text); plain {
			return limit.Cost(cost)
		}
		return limit.Cost(defaultCost)
	}
	if c.wantsBody(s) {
		return limit.Cost(c.least())
	}
	if cost, known := c.ofBody(s, z.MaxBody); known {
		return limit.Cost(cost)
	}
	if z.UnreadBodyCost != nil {
		return limit.Cost(min(*z.UnreadBodyCost, limit.Capacity))
	}
	return limit.Capacity
}

func (c *Cost) least() float64 {
	if c.source == costItems {
		return 1
	}
	return 0
}

func (c *Cost) ofBody(s *subject, most int64) (cost float64, known bool) {
	if c.source == costBytes && s.r.ContentLength >= 0 {
		return float64(s.r.ContentLength) / c.unit, true
	}
	if s.body == nil || int64(len(s.body.Data)) > most {
		return 0, false
	}
	if c.source == costBytes {
		return float64(len(s.body.Data)) / c.unit, true
	}
	items, known := s.body.Items(c.path)
	return float64(items), known
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
