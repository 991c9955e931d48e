package servertest

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/engine"
)

// ServeAdmin is the admin API, as Caddy's admin endpoint reaches it.
var ServeAdmin = admin.API{}.Routes()[0].Handler.ServeHTTP

// Admin asks the admin API, as Caddy's admin endpoint does once it has checked host and
// origin, and decodes the answer. The app counts as started from the first call on.
func (s *Site) Admin(method, path, body string, into any) (status int) {
	s.Helper()
	return AskAdmin(s, s.Engine(), method, path, body, into)
}

func AskAdmin(s testing.TB, a *engine.Engine, method, path, body string, into any) (status int) {
	s.Helper()
	running, release := engine.RunningEngine()
	if running != nil {
		release()
	}
	if running != a {
		StartZones(s, a)
	}
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/json")
	}
	w := httptest.NewRecorder()
	if err := ServeAdmin(w, r); err != nil {
		var api caddy.APIError
		if !errors.As(err, &api) {
			s.Fatalf("%s: got error %v, want one with a status", path, err)
		}
		return api.HTTPStatus
	}
	if into != nil {
		if err := json.Unmarshal(w.Body.Bytes(), into); err != nil {
			s.Fatalf("%s: got %s, want JSON: %v", path, w.Body, err)
		}
	}
	return w.Code
}

// Changes posts what must succeed.
func (s *Site) Changes(path, body string) {
	s.Helper()
	if status := s.Admin(http.MethodPost, path, body, nil); status != http.StatusOK {
		s.Fatalf("%s %s: got %d, want 200", path, body, status)
	}
}
