//go:build !race

// The race detector empties pools at random.

package caddymodule_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
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
		if got := all - keys; got > 3 {
			t.Errorf("%d zones, %q: got %v allocations beyond the keys, want at most 3", test.zones, test.options, got)
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
