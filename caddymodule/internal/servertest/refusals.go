package servertest

import (
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
)

// RefusedOf returns how many requests a zone has refused, or would have in shadow.
func RefusedOf(t testing.TB, zone string) (refused float64) {
	t.Helper()
	for name, n := range Counted(t, telemetry.Requests, zone) {
		if strings.Contains(name, "refused") {
			refused += n
		}
	}
	return refused
}

var SupportCode = regexp.MustCompile(`\b[0-9A-Z]{4}-[0-9A-Z]{4}\b`)

// CodeOn returns the one support code in an answer, or "".
func CodeOn(t *testing.T, w *httptest.ResponseRecorder) string {
	t.Helper()
	codes := SupportCode.FindAllString(w.Body.String(), -1)
	if len(codes) > 1 {
		t.Fatalf("got the codes %q, want at most one", codes)
	}
	return strings.Join(codes, "")
}

// Why asks about a client or a code.
func (s *Site) Why(client string) (got wire.Why) {
	s.Helper()
	if status := s.Admin(http.MethodPost, "/throttle/why", `{"client": "`+client+`"}`, &got); status != http.StatusOK {
		s.Fatalf("why %s: got %d, want 200", client, status)
	}
	return got
}

// Warned checks how many warnings contain a text.
func (s *Site) Warned(t *testing.T, text string, want int) {
	t.Helper()
	got := 0
	for _, line := range s.Logs.Lines(t, text) {
		if line["level"] == "warn" {
			got++
		}
	}
	if got != want {
		t.Errorf("warnings that %q: got %v, want %v", text, got, want)
	}
}
