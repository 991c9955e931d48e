package limit

import (
	"slices"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/form"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// DefaultCost is the cost of a request that matches no line, and of a placeholder
// whose value is no plain number, in units.
const DefaultCost = 1

// Cost is how a zone computes the cost of a request. The first line that matches
// counts.
type Cost struct {
	Lines  []CostLine
	Unread *float64 // units for a body that was not read; nil means the capacity

	// MaxBody is how long a body may be that is read, in bytes. A longer one counts as unread.
	MaxBody int64
	Form    *form.Plan // of the items

	ByDefault bool    // some requests match no line
	Most      float64 // the highest cost that is known before a request comes, in units
}

// A CostLine is the cost of some requests.
type CostLine struct {
	Match  Matchers // nil means all requests
	Source CostSource

	Constant    float64    // units
	Placeholder string     // the name of the placeholder with the cost
	Path        string     // of the items in the body, which are wanted as
	Items       form.Array // in the plan
	Unit        float64    // how many bytes cost 1
}

// A CostSource is where a cost comes from.
type CostSource uint8

// The sources of costs.
const (
	Constant CostSource = iota
	Placeholder
	BodyItems
	BodyBytes
)

// FromBody reports whether the cost comes from the request's body.
func (l *CostLine) FromBody() bool { return l.Source >= BodyItems }

// UsesReplacer reports whether the cost may need the request's placeholders.
func (c *Cost) UsesReplacer() bool {
	return slices.ContainsFunc(c.Lines, func(l CostLine) bool { return l.Match != nil || l.Source == Placeholder })
}

// Charged returns the cost of a request under a limit, in units, and whether it comes from the
// body itself. Each address of the request has a cost, and the dearer counts.
func (c *Cost) Charged(s *Subject, limit leakybucket.Limit) (cost float64, fromBody bool, err error) {
	if len(c.Lines) == 0 {
		return limit.ClampCost(DefaultCost), false, nil
	}
	ask := func() (bool, error) {
		l, err := c.line(s)
		if err == nil {
			cost = max(cost, c.of(l, s, limit))
			fromBody = fromBody || l.readsBody(s)
		}
		return false, err
	}
	if c.Lines[0].Match == nil { // whatever the address
		_, err = ask()
	} else {
		_, err = s.either(ask)
	}
	return cost, fromBody, matcherError("cost", err)
}

// line returns the first line that matches a request, or nil if none does.
func (c *Cost) line(s *Subject) (*CostLine, error) {
	for i := range c.Lines {
		l := &c.Lines[i]
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
func (l *CostLine) readsBody(s *Subject) bool {
	return l != nil && (l.Source == BodyItems || l.Source == BodyBytes && s.Request.ContentLength < 0)
}

// of returns the cost of a request under a limit, in units. That of a body that was not read
// is what Unread says.
func (c *Cost) of(l *CostLine, s *Subject, limit leakybucket.Limit) float64 {
	if l == nil {
		return limit.ClampCost(DefaultCost)
	}
	switch l.Source {
	case Constant:
		return limit.ClampCost(l.Constant)
	case Placeholder:
		text, _ := s.Replacer().GetString(l.Placeholder)
		if cost, plain := leakybucket.ParseCost(text); plain {
			return limit.ClampCost(cost)
		}
		return limit.ClampCost(DefaultCost)
	}
	if cost, known := c.ofBody(l, s); known {
		return limit.ClampCost(cost)
	}
	if c.Unread != nil {
		return limit.ClampCost(min(*c.Unread, limit.Capacity))
	}
	return limit.Capacity
}

func (c *Cost) ofBody(l *CostLine, s *Subject) (cost float64, known bool) {
	if l.Source == BodyBytes {
		length := s.Request.ContentLength
		return float64(max(0, length)) / l.Unit, length >= 0
	}
	if !s.bodyWithin(c.MaxBody) {
		return 0, false
	}
	items, clear := s.Form(c.Form).Items(l.Items)
	return float64(max(1, items)), clear
}
