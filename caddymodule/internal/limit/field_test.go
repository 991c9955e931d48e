package limit

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/form"
)

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
