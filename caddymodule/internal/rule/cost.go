package rule

import (
	"slices"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/body"
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

	// MaxBody is how much of a body may be buffered, in bytes. A longer body counts
	// as unread.
	MaxBody int64

	ByDefault bool    // some requests match no line
	Most      float64 // the highest cost that is known before a request comes, in units
}

// A CostLine is the cost of some requests.
type CostLine struct {
	Match  Matchers // nil means all requests
	Source CostSource

	Constant    float64   // units
	Placeholder string    // the name of the placeholder with the cost
	Path        body.Path // of the items in the body
	Unit        float64   // how many bytes cost 1
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

// IsItems reports whether the cost of each request is the number of items in its body.
func (c *Cost) IsItems() bool {
	return len(c.Lines) == 1 && c.Lines[0].Match == nil && c.Lines[0].Source == BodyItems
}

// UsesReplacer reports whether the cost may need the request's placeholders.
func (c *Cost) UsesReplacer() bool {
	return slices.ContainsFunc(c.Lines, func(l CostLine) bool { return l.Match != nil || l.Source == Placeholder })
}

// Charged returns the cost of a request under a limit, in units, whether the body must be
// read to know it, and whether it comes from there. Each address of the request has a cost,
// and the dearer counts.
func (c *Cost) Charged(s *Subject, limit leakybucket.Limit) (cost float64, wantsBody, readsBody bool, err error) {
	ask := func() (bool, error) {
		l, err := c.line(s)
		if err == nil {
			cost = max(cost, c.of(l, s, limit))
			wantsBody, readsBody = wantsBody || l.wantsBody(s), readsBody || l.readsBody(s)
		}
		return false, err
	}
	if len(c.Lines) == 0 || c.Lines[0].Match == nil { // whatever the address
		_, err = ask()
	} else {
		_, err = s.either(ask)
	}
	return cost, wantsBody, readsBody, matcherError("cost", err)
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

// wantsBody reports whether the body must be read to compute the cost. A declared
// length needs no reading.
func (l *CostLine) wantsBody(s *Subject) bool { return !s.read && l.readsBody(s) }

// readsBody reports whether the cost depends on the body itself.
func (l *CostLine) readsBody(s *Subject) bool {
	return l != nil && (l.Source == BodyItems || l.Source == BodyBytes && s.Request.ContentLength < 0)
}

// of returns the cost of a request under a limit, in units. Before the body is read,
// that is the least that the request can cost.
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
	if l.wantsBody(s) {
		return limit.ClampCost(l.least())
	}
	if cost, known := l.ofBody(s, c.MaxBody); known {
		return limit.ClampCost(cost)
	}
	if c.Unread != nil {
		return limit.ClampCost(min(*c.Unread, limit.Capacity))
	}
	return limit.Capacity
}

func (l *CostLine) least() float64 {
	if l.Source == BodyItems {
		return 1
	}
	return 0
}

func (l *CostLine) ofBody(s *Subject, most int64) (cost float64, known bool) {
	if l.Source == BodyBytes && s.Request.ContentLength >= 0 {
		return float64(s.Request.ContentLength) / l.Unit, true
	}
	seen := s.body.Within(most)
	if seen == nil {
		return 0, false
	}
	if l.Source == BodyBytes {
		return float64(len(seen.Data)) / l.Unit, true
	}
	items, known := seen.Items(l.Path)
	return float64(items), known
}
