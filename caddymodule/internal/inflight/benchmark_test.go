package inflight_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
)

// BenchmarkRequest is a whole request through Caddy's server, without sockets. What in_flight takes
// is the difference to none.
func BenchmarkRequest(b *testing.B) {
	for _, test := range []struct{ name, directive string }{
		{"none", ""},
		{"slots", "in_flight php 100"},
		{"wait", "in_flight php 100 {\nwait 5s\n}"},
		{"client", "in_flight php 100 client_ip"},
		{"share", "in_flight php 100 {\nshare\n}"},
		{"issued", "in_flight php 100 {\nshare\nrank member issued wordpress_logged_in_*\n}"},
		{"shadow", "in_flight php 100 {\nshadow\n}"},
	} {
		b.Run("in_flight="+test.name, func(b *testing.B) {
			s := servertest.NewFuncSite(b, test.directive+"\nsettle_upstream")
			s.Serve = func(w http.ResponseWriter, _ *http.Request) error {
				_, err := w.Write([]byte("ok"))
				return err
			}
			r := httptest.NewRequest(http.MethodGet, "http://example.com/", nil)
			w := discard{http.Header{}}
			b.ReportAllocs()
			for b.Loop() {
				clear(w.header)
				s.ServeHTTP(w, r)
			}
		})
	}
}

// discard is a response writer that keeps nothing.
type discard struct{ header http.Header }

func (d discard) Header() http.Header         { return d.header }
func (d discard) Write(p []byte) (int, error) { return len(p), nil }
func (d discard) WriteHeader(int)             {}
