//go:build !race

// The race detector empties pools at random.

package caddymodule_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// A handler that does not know its server makes a verdict, a record and placeholders. Waits and
// blocks cost only those who have them.
func TestAHandlerAllocatesThriceBeyondItsKeys(t *testing.T) {
	r := httptest.NewRequest(http.MethodGet, "http://example.com/", nil)
	w := &discard{header: make(http.Header)}
	for _, test := range []struct {
		zones   int
		options string
	}{{1, ""}, {2, ""}, {1, "delay 1000"}, {1, "block 1m"}} {
		h := handlerOf(t, test.zones, "limit 1000000000 1000000/s\n"+test.options)
		keys := testing.AllocsPerRun(1000, func() { serve(keysOnly(h), w, r) })
		all := testing.AllocsPerRun(1000, func() { serve(throttled(h), w, r) })
		got := all - keys
		check.That(t, got <= 3, "%d zones, %q: got %v allocations beyond the keys, want at most 3", test.zones, test.options, got)
	}
}

// Caddy itself allocates once for each handler in a request's way, and in_flight once for its call. What
// other sites have costs nothing.
func TestAdmittedRequestsOfOneZoneAllocateNothing(t *testing.T) {
	const zone = "throttle {\nzone pages {\nlimit 1000000000 1000000/s\n}\n}\n"
	allocations := func(before, sites string) float64 {
		s, w := servertest.Run(t, sites+"http://example.com {\n"+before+"respond ok\n}"), &discard{header: make(http.Header)}
		defer s.Stop()
		r := httptest.NewRequest(http.MethodGet, "http://example.com/", nil)
		return testing.AllocsPerRun(1000, func() { s.Server.ServeHTTP(w, r) })
	}
	for name, sites := range map[string]string{
		"one site":                   "",
		"an earlier one":             "http://a.example.com.test {\nrespond a\n}\n",
		"an earlier one that limits": "http://a.example.com.test {\n" + zone + "in_flight php 5\nrespond {http.throttle.zone}\n}\n",
		"a later one that limits":    "http://a.test {\n" + zone + "in_flight php 5\nrespond {http.throttle.zone}\nhandle_errors {\nrespond error\n}\n}\n",
		"one of another address":     "http://a.test:81 {\n" + zone + "in_flight php 5\nrespond {http.throttle.zone}\n}\n",
	} {
		none := allocations("", sites)
		got, inFlight := allocations(zone, sites), allocations("in_flight slots 100\n", sites)
		check.That(t, got <= none+1 && inFlight <= none+2, "%s: got %v and %v allocations, want at most one and two more than the %v without throttle and in_flight", name, got, inFlight, none)
	}
	got, want := allocations("header X-Left {http.throttle.remaining}\n"+zone, ""), allocations(zone, "")+1
	check.That(t, got > want, "got %v allocations where a header tells what remains, want more than %v", got, want)
}
