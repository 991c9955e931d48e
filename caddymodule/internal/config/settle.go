package config

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"

	"golang.org/x/net/http/httpguts"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
)

// Settle corrects a charge once the response is known. The cost at the request is
// then a reservation. Each request is corrected exactly once, and disconnecting
// early never earns a refund.
type Settle struct {
	// The real cost of a request. Required. `seconds` is the time until the
	// upstream's headers, also while the request queues for a worker. `bytes` is the
	// size of the response body, and `header` a number that the upstream sends.
	// `status` is a cost for some statuses, and nothing for others.
	Source string `json:"source,omitempty"`

	// The number of bytes that cost 1, such as `1MiB`. Required for `bytes`.
	Unit string `json:"unit,omitempty"`

	// The response header with the cost. Clients never see it. Required for
	// `header`.
	Name string `json:"name,omitempty"`

	// The statuses that cost something, such as `401` or `4xx`. Required for
	// `status`.
	Status []string `json:"status,omitempty"`

	// The cost of these statuses. Required for `status`.
	Cost float64 `json:"cost,omitempty"`

	// Reserve nothing: the request only asks whether it would fit, and the
	// response is charged. Default: the cost is reserved. Requests already in
	// flight when the bucket fills are still served, so short overshoots are
	// possible.
	After bool `json:"after,omitempty"`

	// How far above the capacity a correction may lift the level, in units.
	// Default: the capacity. With 0, corrections stop at the capacity, so a heavy
	// request pays no more than a light one into a full bucket.
	Debt *float64 `json:"debt,omitempty"`
}

// compile compiles the correction of charges. It comes after the limit and the costs.
func (s *Settle) compile(r *limit.Rule) error {
	if s == nil {
		return nil
	}
	settle, err := s.source()
	if err != nil {
		return About("settle", 0, fmt.Errorf("parsing settle: %w", err))
	}
	r.Settle = settle
	return cmp.Or(
		About("settle debt", 0, r.Limit.ValidateDebt(settle.DebtUnder(r.Limit))),
		refuse("cost", !settle.After && slices.Contains(constants(r), 0), "cost 0 reserves nothing, so any number of requests pass before the first is settled: want a cost, or settle ... after"),
	)
}

// source checks the source and its fields, and returns the rule for them.
func (s *Settle) source() (*limit.Settle, error) {
	source, err := limit.ParseSource(s.Source)
	if err != nil {
		return nil, err
	}
	bytes, header, status := source == limit.ByBytes, source == limit.ByHeader, source == limit.ByStatus
	mixed := (s.Unit != "") != bytes || (s.Name != "") != header || (len(s.Status) > 0) != status || (s.Cost != 0) != status
	settle := &limit.Settle{Source: source, After: s.After, Header: http.CanonicalHeaderKey(s.Name), Cost: s.Cost, Debt: s.Debt}
	err = cmp.Or(
		refuse("settle", mixed, "a word is missing or is that of another source: want settle seconds, bytes <unit>, header <Name> or status <code|class>... <n>"),
		refuse("settle", header && !httpguts.ValidHeaderFieldName(s.Name), "invalid header name %q: want letters, digits and hyphens, such as X-Cost", s.Name),
		refuse("settle", status && !(s.Cost > 0 && s.Cost <= 1e12), "invalid cost %v: want a number above 0", s.Cost),
	)
	if err == nil && bytes {
		settle.Unit, err = parseUnit(s.Unit)
	}
	for _, code := range s.Status {
		statuses, wrong := limit.ParseStatus(code)
		settle.Ranges, err = append(settle.Ranges, statuses), cmp.Or(err, wrong)
	}
	return settle, err
}
