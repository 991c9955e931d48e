package rule

import (
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/refusal"
)

// A Refusal is what clients get that a zone refuses.
type Refusal struct {
	Status  int
	Message string        // to people; may be empty
	Page    *refusal.Page // nil means the built-in page
	AsError bool          // the site's error routes answer instead

	RetryEmpty  bool          // Retry-After says the time to empty
	RetryFloor  time.Duration // the least that Retry-After says
	RetryJitter float64       // the most that is added, as a fraction of the wait

	ZoneHeader  bool // name the zone in a header
	SupportCode bool // have a code that visitors may tell
}
