package config

// MostAtOnce is the most slots, places in a queue and workers that a zone may have.
const MostAtOnce = 1_000_000

// An OptionError is about one option of a zone. It tells the Caddyfile adapter which
// line is wrong.
type OptionError struct {
	Option string
	At     int // index, for options that may be repeated
	error
}

// Unwrap returns the error without the option.
func (e *OptionError) Unwrap() error { return e.error }

// About returns err as an error about an option, or nil if err is nil.
func About(option string, at int, err error) error {
	if err == nil {
		return nil
	}
	return &OptionError{option, at, err}
}

// copyOf returns a copy of a part, or an empty one.
func copyOf[T any](part *T) (full T) {
	if part != nil {
		full = *part
	}
	return full
}
