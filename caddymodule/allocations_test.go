//go:build !race

// The race detector empties pools at random.

package caddymodule

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestAHandlerAllocatesTwiceBeyondItsKeys(t *testing.T) {
	r := httptest.NewRequest(http.MethodGet, "http://example.com/", nil)
	w := &discard{header: make(http.Header)}
	for _, zones := range []int{1, 2} {
		h := handlerOf(t, zones, "limit 1000000000 1000000/s")
		keys := testing.AllocsPerRun(1000, func() { serve(keysOnly(h), w, r) })
		all := testing.AllocsPerRun(1000, func() { serve(throttled(h), w, r) })
		if got := all - keys; got > 2 {
			t.Errorf("%d zones: got %v allocations beyond the keys, want at most 2", zones, got)
		}
	}
}

func TestWaitsAndSlotsCostOnlyZonesThatHaveThem(t *testing.T) {
	r := httptest.NewRequest(http.MethodGet, "http://example.com/", nil)
	w := &discard{header: make(http.Header)}
	const bucket = "limit 1000000000 1000000/s\n"
	for options, most := range map[string]float64{
		bucket + "delay 1000":   2, // nobody has to wait
		bucket + "block 1m":     2,
		bucket + "in_flight 10": 2 + 3,
		"in_flight 10":          2 + 3,
	} {
		h := handlerOf(t, 1, options)
		keys := testing.AllocsPerRun(1000, func() { serve(keysOnly(h), w, r) })
		all := testing.AllocsPerRun(1000, func() { serve(throttled(h), w, r) })
		if got := all - keys; got > most {
			t.Errorf("%q: got %v allocations beyond the keys, want at most %v", options, got, most)
		}
	}
}
