//go:build !race

// The race detector empties pools at random.

package refusal

import (
	"net/http"
	"testing"
	"time"
)

// TestRefusingAllocatesLittle: the value of each header, and the text of those
// that are numbers, one of them only in the page for people.
func TestRefusingAllocatesLittle(t *testing.T) {
	for accept, want := range map[string]float64{"*/*": 5, "text/html,*/*;q=0.8": 8} {
		w, r := &discard{make(http.Header)}, request(accept)
		got := testing.AllocsPerRun(100, func() {
			f := Refusal{Status: 429, Waits: true, RetryAfter: 1000 * time.Second, TimeToFit: time.Second}
			if err := f.Write(w, r, false); err != nil {
				t.Fatal(err)
			}
			clear(w.header)
		})
		if got > want {
			t.Errorf("%s: got %v allocations, want %v", accept, got, want)
		}
	}
}
