package engine_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
)

// TestSettleAllocatesLittle compares a site with one that differs only in settle.
func TestSettleAllocatesLittle(t *testing.T) {
	const runs = 50 // in one, to see fractions
	allocations := func(directives, path string) float64 {
		s := servertest.NewFuncSite(t, directives+"\nsettle_upstream")
		s.Serve = func(w http.ResponseWriter, _ *http.Request) error {
			w.WriteHeader(http.StatusOK)
			return nil
		}
		return testing.AllocsPerRun(20, func() {
			for range runs {
				s.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "http://example.com"+path, nil))
			}
		}) / runs
	}
	site := func(options string) string {
		return `throttle {
			zone settled {
				limit 1000000 1000000/s
				exempt {
					path /free
				}
				` + options + `
			}
		}`
	}
	const rounding = 0.5 // the race detector empties pools now and then
	plain, free := allocations(site(""), "/"), allocations(site(""), "/free")
	for _, options := range []string{"settle seconds", "settle bytes 1", "settle header X-Cost", "settle status 200 4", "settle status 200 4 after"} {
		if got := allocations(site(options), "/") - plain; got > 2+rounding {
			t.Errorf("%s: got %v allocations more than without, want at most 2", options, got)
		}
		if got := allocations(site(options), "/free") - free; got > 1+rounding {
			t.Errorf("%s, exempt: got %v allocations more than without, want at most 1", options, got)
		}
	}
}

// TestWithoutSettleNothingStandsBetween: zones without settle do not pay for it.
func TestWithoutSettleNothingStandsBetween(t *testing.T) {
	for _, test := range []struct {
		options, path string
		wrapped       bool
	}{
		{"", "/", false},
		{"settle seconds", "/", true},
		{"settle seconds\nexempt {\npath /free\n}", "/free", false},
		{"settle header X-Cost\nexempt {\npath /free\n}", "/free", true}, // to strip it
	} {
		s := servertest.NewFuncZone(t, test.options)
		s.Serve = func(w http.ResponseWriter, _ *http.Request) error {
			if _, wrapped := w.(*limit.Observer); wrapped != test.wrapped {
				t.Errorf("%q, %s: got a %T, want it wrapped: %v", test.options, test.path, w, test.wrapped)
			}
			return nil
		}
		s.Get(test.path)
	}
}
