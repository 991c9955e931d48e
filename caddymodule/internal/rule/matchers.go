package rule

import (
	"net/http"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/address"
)

// Matchers are sets of request matchers. One of the sets must match. They are asked with
// each address of a request: see [Subject.Matches] and [Subject.Spares].
type Matchers = caddyhttp.MatcherSets

// at returns the request's addresses.
func (s *Subject) at() address.Pair {
	if !s.looked {
		s.pair, s.looked = address.Of(s.Request), true
	}
	return s.pair
}

// Matches reports whether one of the sets holds for either address of the request. It is
// for what puts the request under a rule.
func (s *Subject) Matches(sets Matchers) (bool, error) {
	return s.at().Either(s.Judged, func() (bool, error) { return sets.AnyMatchWithError(s.Judged) })
}

// Spares reports whether one of the sets holds for both addresses of the request. It is for
// what exempts or prefers the request.
func (s *Subject) Spares(sets Matchers) (bool, error) {
	for _, set := range sets {
		holds, err := s.at().Both(s.Judged, func() (bool, error) { return set.MatchWithError(s.Judged) })
		if holds || err != nil {
			return holds, err
		}
	}
	return false, nil
}

// first returns the index of the first that matches with the address as sent, or else with
// the other one, or -1.
func (s *Subject) first(n int, matches func(i int, r *http.Request) bool) (found int) {
	found = -1
	_, _ = s.at().Either(s.Request, func() (bool, error) {
		for i := range n {
			if matches(i, s.Request) {
				found = i
				return true, nil
			}
		}
		return false, nil
	})
	return found
}
