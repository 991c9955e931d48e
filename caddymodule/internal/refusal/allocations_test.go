//go:build !race

// The race detector empties pools at random.

package refusal

import (
	"net/http"
	"testing"
	"time"
)

// TestRefusingAllocatesLittle: the memory of the header values, and the text of those
// that are numbers.
func TestRefusingAllocatesLittle(t *testing.T) {
	w, r := &discard{make(http.Header)}, request("text/html,*/*;q=0.8")
	zones := violated(func() []string { return []string{"login"} })
	got := testing.AllocsPerRun(100, func() {
		f := Refusal{Status: 429, Waits: true, RetryAfter: 1000 * time.Second, TimeToFit: time.Second, Violated: zones}
		if err := f.Write(w, r, false); err != nil {
			t.Fatal(err)
		}
		clear(w.header)
	})
	if got > 2 {
		t.Errorf("got %v allocations, want 2", got)
	}
}
