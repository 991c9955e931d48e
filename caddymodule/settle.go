package caddymodule

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// Settle says how a charge is corrected once the response is known. What the
// cost lines say is then a reservation.
type Settle struct {
	// What a request really cost: `seconds`, the time until the upstream's
	// headers; `bytes`, how much was sent; `header`, a number that the upstream
	// sends; `status`, a cost for some answers and nothing for others. Required.
	Source string `json:"source,omitempty"`

	// How many bytes cost 1, such as `1MiB`. Required for bytes.
	Unit string `json:"unit,omitempty"`

	// The header that says the cost. The client never sees it. Required for
	// header.
	Name string `json:"name,omitempty"`

	// The answers that cost something, such as `401` or `4xx`. Required for
	// status.
	Status []string `json:"status,omitempty"`

	// What they cost. Required for status.
	Cost float64 `json:"cost,omitempty"`

	// Reserve nothing: a request only asks whether it would fit, and the
	// response is charged. What is in flight together may then overshoot.
	After bool `json:"after,omitempty"`

	unit   float64
	ranges []statusRange
}

// A statusRange is a status, or a class of them.
type statusRange struct{ first, last int }

var (
	statusCode = regexp.MustCompile(`^[1-5](xx|[0-9][0-9])$`)
	headerName = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")
)

func (s *Settle) compile() (err error) {
	for _, field := range []struct {
		source, name string
		given        bool
	}{
		{"bytes", "unit", s.Unit != ""},
		{"header", "name", s.Name != ""},
		{"status", "status", len(s.Status) > 0},
		{"status", "cost", s.Cost != 0},
	} {
		if field.given != (s.Source == field.source) {
			return fmt.Errorf("settle %s: the %s is missing or misplaced: want settle seconds, bytes <unit>, header <Name> or status <code|class>... <n>", s.Source, field.name)
		}
	}
	switch s.Source {
	case "seconds":
	case "bytes":
		s.unit, err = parseUnit(s.Unit)
	case "header":
		if !headerName.MatchString(s.Name) {
			err = fmt.Errorf("invalid header name %q: want letters, digits and hyphens, such as X-Cost", s.Name)
		}
		s.Name = http.CanonicalHeaderKey(s.Name)
	case "status":
		s.ranges = nil
		for _, code := range s.Status {
			if !statusCode.MatchString(code) {
				return fmt.Errorf("invalid status %q: want a code such as 401 or a class such as 4xx", code)
			}
			first, _ := strconv.Atoi(strings.ReplaceAll(code, "x", "0"))
			last, _ := strconv.Atoi(strings.ReplaceAll(code, "x", "9"))
			s.ranges = append(s.ranges, statusRange{first, last})
		}
		if !(s.Cost > 0 && s.Cost <= 1e12) {
			err = fmt.Errorf("invalid cost %v: want a number above 0", s.Cost)
		}
	default:
		err = fmt.Errorf("unknown source %q: want seconds, bytes <unit>, header <Name> or status <code|class>... <n>", s.Source)
	}
	return err
}

func (z *Zone) compileSettle() error {
	if z.Settle == nil {
		z.about("debt", 0)
		if z.Debt != nil {
			return fmt.Errorf("debt %v has no meaning: the zone does not settle", *z.Debt)
		}
		return nil
	}
	z.about("settle", 0)
	if err := z.Settle.compile(); err != nil {
		return fmt.Errorf("parsing settle: %w", err)
	}
	z.about("debt", 0)
	if err := z.limit.ValidateDebt(z.debt(z.limit)); err != nil {
		return err
	}
	z.about("cost", 0)
	if !z.Settle.After && slices.Contains(z.constants(), 0) {
		return errors.New("cost 0 reserves nothing, so that any number of requests get in before the first is settled: want a cost, or settle ... after")
	}
	return nil
}

// debt returns how far above the capacity a settlement may lift a bucket.
func (z *Zone) debt(limit leakybucket.Limit) float64 {
	switch {
	case z.Settle == nil:
		return 0
	case z.Debt != nil:
		return *z.Debt
	}
	return limit.Capacity
}

func (s *Settle) matches(status int) bool {
	return slices.ContainsFunc(s.ranges, func(r statusRange) bool { return r.first <= status && status <= r.last })
}
