package tests

import (
	"strings"
	"testing"
)

// checkRefusal holds for every page that throttle itself writes.
func checkRefusal(t *testing.T, a answer) {
	t.Helper()
	if a.status != 429 {
		t.Errorf("got status %d, want 429", a.status)
	}
	a.retryAfter(t)
	if got := a.header.Get("Cache-Control"); got != "no-store" {
		t.Errorf("got Cache-Control %q, want no-store", got)
	}
	if got := a.header.Get("Content-Type"); !strings.HasPrefix(got, "text/html") {
		t.Errorf("got Content-Type %q, want text/html", got)
	}
	if !strings.Contains(strings.ToLower(a.body), "<html") || !strings.Contains(a.body, "second") {
		t.Errorf("got the page %q, want HTML that says how many seconds to wait", a.body)
	}
}
