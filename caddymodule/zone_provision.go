package caddymodule

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
)

// provision makes a compiled zone ready for requests.
func (z *Zone) provision(ctx caddy.Context) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("zone %q: %w", z.Name, err)
		}
	}()
	if z.match, err = loadMatchers(ctx, z, "Match", z.Match); err != nil {
		return err
	}
	if z.exempt, err = loadMatchers(ctx, z, "Exempt", z.Exempt); err != nil {
		return err
	}
	for i := range z.Cost {
		if err = z.Cost[i].load(ctx); err != nil {
			return err
		}
	}
	for i := range z.Route {
		if err = z.Route[i].Path.Provision(ctx); err != nil {
			return err
		}
	}
	if z.page, err = loadPage(z.Page); err != nil {
		return err
	}
	z.decided = countersOf(z)
	return nil
}

// warn tells of what works, and probably not as it is meant.
func (z *Zone) warn(logger *zap.Logger) {
	logger = logger.With(zap.String("zone", z.Name))
	for _, source := range z.Key {
		if source.Source == "header" && strings.ContainsAny(source.Name, "_.") {
			logger.Warn("Caddy drops headers with _ or . in their names unless they are listed in expected_underscore_headers or expected_dot_headers of the server: this key may always be missing",
				zap.String("header", source.Name))
		}
	}
	if z.Block != nil && z.Settle != nil && !z.Settle.After {
		logger.Warn("zone blocks for what requests reserve, before the response tells what they cost: put after behind settle")
	}
	if wait := z.longestWait(); wait > patientClient {
		logger.Warn("requests may wait for longer than most clients do: give max_wait, a smaller capacity or a faster leak",
			zap.Duration("longest_wait", wait))
	}
	for _, limit := range z.table.Limits() {
		for _, cost := range z.constants() {
			if limit.Oversize(cost) {
				logger.Warn("an override holds less than some requests cost: its clients can never make them",
					zap.Float64("capacity", limit.Capacity), zap.Float64("cost", cost))
			}
		}
	}
}

// concerns reports whether the zone is about a request.
func (z *Zone) concerns(r *http.Request) (bool, error) {
	if match, err := z.match.AnyMatchWithError(r); err != nil || !match {
		return false, err
	}
	return isNot(z.exempt, r)
}

// isNot reports whether no set matches; no sets match nothing.
func isNot(sets caddyhttp.MatcherSets, r *http.Request) (bool, error) {
	if len(sets) == 0 {
		return true, nil
	}
	match, err := sets.AnyMatchWithError(r)
	return err == nil && !match, err
}

func (z *Zone) routeOf(r *http.Request) string {
	for i := range z.Route {
		if match, _ := z.Route[i].Path.MatchWithError(r); match {
			return z.Route[i].Name
		}
	}
	return otherRoute
}

// byClient reports whether clients cannot choose the whole key.
func (z *Zone) byClient() bool { return slices.Contains(z.addresses, true) }

// inventable reports whether a client can get any number of buckets by making
// values up.
func (z *Zone) inventable() bool {
	return !z.byClient() && slices.ContainsFunc(z.Key, func(k KeySource) bool {
		return slices.Contains([]string{"header", "cookie", "query", "form"}, k.Source) || sentByClient.MatchString(k.Source)
	})
}

var sentByClient = regexp.MustCompile(`\{http\.request\.(header|cookie|uri\.query)\.`)
