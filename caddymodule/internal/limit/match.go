package limit

// A Concern is whether a zone charges a request.
type Concern uint8

// The concerns.
const (
	Unmatched Concern = iota
	Exempted          // by the zone's own matchers
	Static            // exempt, because a static file answers it
	Concerned
)

// Concerns reports whether the zone charges a request, and if not, why. The error is that of
// a matcher.
func (z *Zone) Concerns(s *Subject) (Concern, error) {
	if z.Match != nil {
		if match, err := s.MatchesEither(z.Match); err != nil || !match {
			return Unmatched, matcherError("match", err)
		}
	}
	if exempt, err := z.Exempts(s); err != nil {
		return Unmatched, err
	} else if exempt {
		return Exempted, nil
	}
	for _, files := range z.Static {
		if files.Match(s.Request) {
			return Static, nil
		}
	}
	return Concerned, nil
}

// Exempts reports whether the zone's own matchers exempt a request. Static files do
// not count.
func (z *Zone) Exempts(s *Subject) (bool, error) {
	if z.Exempt == nil {
		return false, nil
	}
	exempt, err := s.MatchesBoth(z.Exempt)
	return exempt, matcherError("exempt", err)
}

// A MatcherError is the error of a matcher.
type MatcherError struct {
	Option string // whose matcher it is: match, exempt or cost
	Err    error
}

// Error implements error.
func (e *MatcherError) Error() string { return e.Option + ": " + e.Err.Error() }

// Unwrap returns the matcher's own error.
func (e *MatcherError) Unwrap() error { return e.Err }

func matcherError(option string, err error) error {
	if err == nil {
		return nil
	}
	return &MatcherError{option, err}
}
