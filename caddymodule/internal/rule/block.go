package rule

import "github.com/caddy-throttle/caddy-throttle/leakybucket"

// Blocking is what an overflow begins.
type Blocking struct {
	Block      *leakybucket.Ladder // nil means that overflows begin no block
	Everywhere bool                // blocks hold in all handlers
}
