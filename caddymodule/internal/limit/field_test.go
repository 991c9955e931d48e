package limit

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/body"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/form"
)

// TestABodyIsReadOnce by all zones: what is closed after the first one could not be read again.
func TestABodyIsReadOnce(t *testing.T) {
	r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(strings.Repeat("a[]", 1<<20/3)+"&log=admin"))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	plan, s := new(form.Plan), NewSubject(r)
	zones := []*Zone{{Key: new(Key), Field: []string{"log"}}, {Key: new(Key), Field: []string{"pwd"}}, {Key: new(Key), Field: []string{"log", "pwd"}}}
	for _, zone := range zones {
		if err := zone.ReadBy(plan); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Receive(body.NewStore(t.TempDir(), nil), 0); err != nil {
		t.Fatal(err)
	}
	for i, zone := range zones {
		if got := zone.Carries(&s); got != (i != 1) {
			t.Errorf("zone %d: got a field: %v, want %v", i, got, i != 1)
		}
		_ = s.Body.Close()
	}
}

// BenchmarkCarries measures what zones with field add to the look at a request without a query and
// a body. The first that asks for the request's address, as matchers do, too, has it looked up.
func BenchmarkCarries(b *testing.B) {
	for zones := range 4 {
		b.Run(fmt.Sprintf("zones=%d", zones), func(b *testing.B) {
			zone := Zone{Key: new(Key), Field: []string{"pwd", "user[password]"}}
			if err := zone.ReadBy(new(form.Plan)); err != nil {
				b.Fatal(err)
			}
			r := caddyhttp.PrepareRequest(httptest.NewRequest(http.MethodGet, "/", nil), caddy.NewReplacer(), httptest.NewRecorder(), new(caddyhttp.Server))
			var s Subject
			b.ReportAllocs()
			for b.Loop() {
				s.Forget()
				s.Look(r)
				for range zones {
					if zone.Carries(&s) {
						b.Fatal("got a field, want none")
					}
				}
			}
		})
	}
}
