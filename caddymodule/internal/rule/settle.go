package rule

import (
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/settlement"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// Settling is how charges are corrected once responses are known.
type Settling struct {
	Settle *settlement.Rule // nil means that charges are not corrected
	Debt   *float64         // units; nil means one capacity
}

// debt returns how far above the capacity a settlement may lift a bucket with this
// limit, in units.
func (s *Settling) debt(limit leakybucket.Limit) float64 {
	switch {
	case s.Settle == nil:
		return 0
	case s.Debt != nil:
		return *s.Debt
	}
	return limit.Capacity
}
