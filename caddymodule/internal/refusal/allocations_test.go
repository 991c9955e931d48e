//go:build !race

// The race detector empties pools at random.

package refusal

import (
	"net/http"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// TestRefusingAllocatesLittle: the values of all headers, and the text of those
// that are numbers, one of them only in the page for people.
func TestRefusingAllocatesLittle(t *testing.T) {
	for accept, want := range map[string]float64{"*/*": 2, "text/html,*/*;q=0.8": 3} {
		w, r := &discard{make(http.Header)}, request(accept)
		got := testing.AllocsPerRun(100, func() {
			f := Refusal{Status: 429, Waits: true, RetryAfter: 1000 * time.Second, TimeToFit: time.Second}
			check.OK(t, f.Write(w, r, false))
			clear(w.header)
		})
		check.That(t, got <= want, "%s: got %v allocations, want %v", accept, got, want)
	}
}
