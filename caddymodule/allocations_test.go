//go:build !race

// The race detector empties pools at random.

package caddymodule_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
)

// A handler that does not know its server makes a verdict, a record and placeholders.
func TestAHandlerAllocatesThriceBeyondItsKeys(t *testing.T) {
	r := httptest.NewRequest(http.MethodGet, "http://example.com/", nil)
	w := &discard{header: make(http.Header)}
	for _, zones := range []int{1, 2} {
		h := handlerOf(t, zones, "limit 1000000000 1000000/s")
		keys := testing.AllocsPerRun(1000, func() { serve(keysOnly(h), w, r) })
		all := testing.AllocsPerRun(1000, func() { serve(throttled(h), w, r) })
		if got := all - keys; got > 3 {
			t.Errorf("%d zones: got %v allocations beyond the keys, want at most 3", zones, got)
		}
	}
}

func TestWaitsAndBlocksCostOnlyThoseWhoHaveThem(t *testing.T) {
	r := httptest.NewRequest(http.MethodGet, "http://example.com/", nil)
	w := &discard{header: make(http.Header)}
	for options, most := range map[string]float64{
		"delay 1000": 3, // nobody has to wait
		"block 1m":   3,
	} {
		h := handlerOf(t, 1, "limit 1000000000 1000000/s\n"+options)
		keys := testing.AllocsPerRun(1000, func() { serve(keysOnly(h), w, r) })
		all := testing.AllocsPerRun(1000, func() { serve(throttled(h), w, r) })
		if got := all - keys; got > most {
			t.Errorf("%q: got %v allocations beyond the keys, want at most %v", options, got, most)
		}
	}
}

// Caddy itself allocates once for each handler in a request's way.
func TestAdmittedRequestsOfOneZoneAllocateNothing(t *testing.T) {
	const zone = "throttle {\nzone pages {\nlimit 1000000000 1000000/s\n}\n}\n"
	var got []float64
	for _, before := range []string{"", zone, "header X-Left {http.throttle.remaining}\n" + zone} {
		s, w := servertest.Run(t, "http:// {\n"+before+"respond ok\n}"), &discard{header: make(http.Header)}
		r := httptest.NewRequest(http.MethodGet, "http://example.com/", nil)
		got = append(got, testing.AllocsPerRun(1000, func() { s.Server.ServeHTTP(w, r) }))
	}
	if got[1] > got[0]+1 {
		t.Errorf("got %v allocations, want at most one more than the %v without throttle", got[1], got[0])
	}
	if got[2] <= got[1]+1 {
		t.Errorf("got %v allocations where a header tells what remains, want more than %v", got[2], got[1]+1)
	}
}
