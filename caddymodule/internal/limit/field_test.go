package limit

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/body"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/form"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// TestABodyIsReadOnce by all zones: what is closed after the first one could not be read again.
func TestABodyIsReadOnce(t *testing.T) {
	r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(strings.Repeat("a[]", 1<<20/3)+"&log=admin"))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	plan, s := new(form.Plan), NewSubject(r)
	zones := []*Zone{{Key: new(Key), Field: []string{"log"}}, {Key: new(Key), Field: []string{"pwd"}}, {Key: new(Key), Field: []string{"log", "pwd"}}}
	for _, zone := range zones {
		check.OK(t, zone.ReadBy(plan))
	}
	check.OK(t, s.Receive(body.NewStore(t.TempDir(), nil), 0))
	for i, zone := range zones {
		if got := zone.Carries(&s); got != (i != 1) {
			t.Errorf("zone %d: got a field: %v, want %v", i, got, i != 1)
		}
		_ = s.Body.Close()
	}
}
