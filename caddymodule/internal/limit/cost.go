package limit

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/form"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/option"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// Cost is the cost of some requests.
type Cost struct {
	// Which requests have this cost. Default: all. A cost for all requests must
	// be the last one.
	MatchRaw caddyhttp.RawMatcherSets `json:"match,omitempty" caddy:"namespace=http.matchers"`

	// The cost: a number, a placeholder such as `{http.vars.cost}`, `body_items` or
	// `body_bytes`. Required. Numbers may be fractions. A placeholder whose value
	// is no plain decimal number costs 1. `body_items` is the length of a JSON
	// array, or how many fields a form has there. `body_bytes` is the size of the
	// body.
	Value string `json:"value,omitempty"`

	// The array that `body_items` counts, such as `data.rows`, or the name of the
	// form field. Default: the whole body is the array.
	Path string `json:"path,omitempty"`

	// The number of bytes that cost 1, such as `1KiB`. Required for `body_bytes`.
	Unit string `json:"unit,omitempty"`

	Match Matchers `json:"-"` // nil means all requests

	source      costSource
	constant    float64    // units
	placeholder string     // the name of the placeholder with the cost
	items       form.Array // of Path, in the plan of the key
	bytes       float64    // how many cost 1
}

// ReadBody says how much of a body is read for costs.
type ReadBody struct {
	// How long a request body may be that is read, such as `64KiB`. Default: 64KiB. A longer
	// body goes on unread.
	Most string `json:"most,omitempty"`

	// The cost of a request whose body was not read or not understood, if its cost comes
	// from there. Default: the capacity, so that such a request passes only into an empty
	// bucket. If client_ip is no part of the key, it is a tenth of the capacity, and no more is
	// allowed: with one request, anybody could else fill a bucket that others share.
	Else string `json:"else,omitempty"`

	bytes  int64   // the same as Most; 0 if no cost comes from the body
	unread float64 // units of Else; at most the capacity counts
}

// defaultCost is the cost of a request that matches no line, and of a placeholder
// whose value is no plain number, in units.
const defaultCost = 1

// A costSource is where a cost comes from.
type costSource uint8

// The sources of costs.
const (
	constant costSource = iota
	byPlaceholder
	bodyItems
	bodyBytes
)

// fromBody reports whether the cost comes from the request's body.
func (c *Cost) fromBody() bool { return c.source >= bodyItems }

// cost returns the cost of a request under a limit, in units, and whether it comes from the
// body itself. Each address of the request has a cost, and the dearer counts.
func (z *Zone) cost(s *Subject, limit leakybucket.Limit) (cost float64, fromBody bool, err error) {
	if len(z.Cost) == 0 {
		return limit.ClampCost(defaultCost), false, nil
	}
	return z.costOfLines(s, limit)
}

func (z *Zone) costOfLines(s *Subject, limit leakybucket.Limit) (cost float64, fromBody bool, err error) {
	ask := func() (bool, error) {
		l, err := z.costLine(s)
		if err == nil {
			cost = max(cost, limit.ClampCost(z.costBy(l, s, limit)))
			fromBody = fromBody || l.readsBody(s)
		}
		return false, err
	}
	if z.Cost[0].Match == nil { // whatever the address
		_, err = ask()
	} else {
		_, err = s.anyAddress(ask)
	}
	return cost, fromBody, matcherError("cost", err)
}

// costLine returns the first line that matches a request, or nil if none does.
func (z *Zone) costLine(s *Subject) (*Cost, error) {
	for i := range z.Cost {
		l := &z.Cost[i]
		if l.Match == nil {
			return l, nil
		}
		if match, err := l.Match.AnyMatchWithError(s.Judged); err != nil || match {
			return l, err
		}
	}
	return nil, nil
}

// readsBody reports whether the cost depends on the body itself. A declared length needs no
// reading.
func (c *Cost) readsBody(s *Subject) bool {
	return c != nil && (c.source == bodyItems || c.source == bodyBytes && s.Request.ContentLength < 0)
}

// costBy returns the cost of a request by a line, or without one, in units. That of a body that was
// not read is what read_body says.
func (z *Zone) costBy(c *Cost, s *Subject, limit leakybucket.Limit) float64 {
	switch {
	case c == nil:
	case c.source == constant:
		return c.constant
	case c.source == byPlaceholder:
		text, _ := s.Replacer().GetString(c.placeholder)
		if cost, plain := leakybucket.ParseCost(text); plain {
			return cost
		}
	default:
		if cost, known := z.costOfBody(c, s); known {
			return cost
		}
		return min(z.ReadBody.unread, limit.Capacity)
	}
	return defaultCost
}

func (z *Zone) costOfBody(c *Cost, s *Subject) (cost float64, known bool) {
	if c.source == bodyBytes {
		length := s.Request.ContentLength
		return float64(max(0, length)) / c.bytes, length >= 0
	}
	if !s.whole() || s.Request.ContentLength > z.ReadBody.bytes {
		return 0, false
	}
	items, known := s.Form(z.Key.Form).Items(c.items)
	return float64(max(1, items)), known
}

// mostReadBody is in bytes.
const mostReadBody = 16 << 20

// compile compiles how much of a body is read. It comes after the key and the costs.
// given says that the zone has read_body.
func (b *ReadBody) compile(z *Zone, given bool) error {
	if !slices.ContainsFunc(z.Cost, func(c Cost) bool { return c.fromBody() }) {
		return option.Refuse("read_body", given, "read_body has no meaning: no cost comes from the body")
	}
	size, err := option.ParseSize(b.Most, mostReadBody)
	if err != nil {
		return option.About("read_body", 0, fmt.Errorf("parsing read_body: %w", err))
	}
	b.bytes = size
	most := z.Limit.Capacity
	if b.unread = math.Inf(1); !z.Key.HasAddress() {
		most /= 10
		b.unread = most
	}
	if b.Else == "" {
		return nil
	}
	if err = option.Set(&b.unread, b.Else); err == nil {
		err = z.Limit.ValidateCost(b.unread)
	}
	switch {
	case err != nil:
	case b.unread == 0:
		err = errors.New("0 lets clients hide costs in bodies that cannot be read: want a number above 0")
	case b.unread > most:
		err = fmt.Errorf("%s is too much for a bucket that clients share, since client_ip is no part of the key: want at most a tenth of the capacity, such as read_body %s else %v", b.Else, b.Most, most)
	default:
		return nil
	}
	return option.About("read_body else", 0, fmt.Errorf("read_body ... else: %w", err))
}

// compile compiles the source. It checks constants against the zone's limit.
func (c *Cost) compile(limit leakybucket.Limit) (err error) {
	switch {
	case c.Path != "" && c.Value != "body_items":
		return fmt.Errorf("cost %s takes no path: unexpected %q", c.Value, c.Path)
	case (c.Unit != "") != (c.Value == "body_bytes"):
		return fmt.Errorf("cost %s and the unit %q do not go together: want body_bytes <unit>, such as body_bytes 1KiB", c.Value, c.Unit)
	case c.Value == "body_items":
		c.source = bodyItems
		_, err = new(form.Plan).Array(c.Path)
		return err
	case c.Value == "body_bytes":
		c.source = bodyBytes
		c.bytes, err = option.ParseUnit(c.Unit)
		return err
	case strings.HasPrefix(c.Value, "{"):
		if placeholder.FindString(c.Value) != c.Value {
			return fmt.Errorf("invalid cost %q: want a number or a single {placeholder}", c.Value)
		}
		c.source, c.placeholder = byPlaceholder, c.Value[1:len(c.Value)-1]
		if err = checkPlaceholder(c.placeholder); err != nil {
			err = fmt.Errorf("placeholder %s: %w", c.Value, err)
		}
		return err
	}
	constant, plain := leakybucket.ParseCost(c.Value)
	if !plain {
		return fmt.Errorf("invalid cost %q: want a number such as 2 or 0.5, a {placeholder}, body_items or body_bytes", c.Value)
	}
	c.constant = constant
	return limit.ValidateCost(constant)
}

func (c *Cost) checkMatch() error {
	err := option.CheckMatcherSets(c.MatchRaw)
	if n, plain := leakybucket.ParseCost(c.Value); !plain || n > 1 {
		for _, set := range c.MatchRaw {
			err = cmp.Or(err, option.CheckTails(set))
		}
	}
	return err
}

// compileCosts compiles the lines of cost. It comes after the limit.
func (z *Zone) compileCosts() error {
	byDefault := z.costsByDefault()
	for i := range z.Cost {
		c := &z.Cost[i]
		err := cmp.Or(c.compile(z.Limit), c.checkMatch())
		if err == nil && len(c.MatchRaw) == 0 && i < len(z.Cost)-1 {
			err = fmt.Errorf("cost %s: a line for all requests must come last", c.Value)
		}
		if err != nil {
			return option.About("cost", i, err)
		}
		byDefault = byDefault || c.source == byPlaceholder
	}
	charges := func(c Cost) bool { return c.source != constant || c.constant > 0 }
	if !byDefault && z.Settle == nil && !slices.ContainsFunc(z.Cost, charges) {
		return option.About("cost", len(z.Cost)-1, errors.New("cost 0 for all requests charges nothing, so the zone limits nothing: want another cost, or settle"))
	}
	if byDefault {
		if err := z.Limit.ValidateCost(defaultCost); err != nil {
			return option.About("limit", 0, fmt.Errorf("default cost: %w: want another capacity, or a constant cost for all requests", err))
		}
	}
	for _, one := range z.constants() {
		z.MostCost = max(z.MostCost, one)
	}
	return nil
}

// costsByDefault reports whether some requests match no line. Before the zone is loaded, lines have
// the JSON of their matchers alone.
func (z *Zone) costsByDefault() bool {
	return len(z.Cost) == 0 || len(z.Cost[len(z.Cost)-1].MatchRaw) > 0
}

// constants returns every cost of a zone that is known before a request comes. The
// default cost is one of them if no line is for all requests.
func (z *Zone) constants() (all []float64) {
	if z.costsByDefault() {
		all = append(all, defaultCost)
	}
	for _, c := range z.Cost {
		if c.source == constant {
			all = append(all, c.constant)
		}
	}
	return all
}
