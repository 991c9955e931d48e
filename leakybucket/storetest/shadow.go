package storetest

import (
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

func shadowRefusesNobody(tb testing.TB, open Open) {
	s := beginHeld(tb, open, Need{})
	full := shadow(charge("full", limit(1, 1), 1))
	enforced := charge("enforced", limit(10, 1), 1)
	other := shadow(charge("other", limit(10, 1), 1))
	s.pours(full, 0)
	s.take(charges(full, enforced), want{refused, 1}, want{poured, 0})
	s.take(charges(enforced, full), want{poured, 1}, want{refused, 1})
	s.take(charges(other, full, enforced), want{poured, 0}, want{refused, 1}, want{poured, 2})
	s.take(charges(full, other), want{refused, 1}, want{poured, 1})
	s.wantLevel(full, 1) // its own overflow pours nothing, as if it were enforced
	s.at(time.Second)
	s.take(charges(full, enforced), want{poured, 0}, want{poured, 2})
}

// shadowBesideRefusal: who is refused by another zone has not used this one, be
// it shadow or not.
func shadowBesideRefusal(tb testing.TB, open Open) {
	s := beginHeld(tb, open, Need{})
	full := charge("full", limit(1, 1), 1)
	s.pours(full, 0)
	watched := shadow(charge("watched", limit(10, 1), 3))
	s.take(charges(watched, full), want{held, 0}, want{refused, 1})
	s.take(charges(full, watched), want{refused, 1}, want{held, 0})
	overflowing := shadow(charge("overflowing", limit(2, 1), 3))
	s.take(charges(watched, overflowing, full), want{held, 0}, want{refused, 0}, want{refused, 1})
	s.wantLevel(watched, 0)
	s.pours(watched, 0)
}

func shadowOwnBuckets(tb testing.TB, open Open) {
	s := beginHeld(tb, open, Need{})
	enforced := func(cost float64) leakybucket.Charge { return charge("k", limit(6, 1), cost) }
	s.pours(enforced(4), 0)
	s.pours(shadow(enforced(5)), 0)
	s.refuses(enforced(3), 4)
	s.take(charges(enforced(1), shadow(enforced(1))), want{poured, 4}, want{poured, 5}) // no sum of both
	s.wantLevel(enforced(0), 5)
	s.wantLevel(shadow(enforced(0)), 6)
	s.at(6 * time.Second)
	s.take(charges(shadow(enforced(4)), enforced(4)), want{poured, 0}, want{poured, 0})
}
