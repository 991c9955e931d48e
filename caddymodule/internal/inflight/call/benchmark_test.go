package call

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/body"
)

// A discarding writer is a client that takes everything.
type discarding struct{ header http.Header }

func (d discarding) Header() http.Header         { return d.header }
func (d discarding) Write(p []byte) (int, error) { return len(p), nil }
func (d discarding) WriteHeader(int)             {}

// BenchmarkServe serves requests in the context of Caddy's server, with a call and without one.
func BenchmarkServe(b *testing.B) {
	store := body.NewStore(b.TempDir(), func(err error) { b.Error(err) })
	ctx, leave := context.WithCancel(context.WithValue(b.Context(), http.ServerContextKey, new(http.Server)))
	defer leave()
	w := discarding{make(http.Header)}
	r := httptest.NewRequest(http.MethodGet, "/", nil).WithContext(ctx)
	r = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), w, new(caddyhttp.Server))
	for name, size := range map[string]int{"small": 300, "page": 30 << 10, "large": 1 << 20} {
		piece := make([]byte, min(size, 32<<10))
		next := caddyhttp.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) error {
			for left := size; left > 0; left -= len(piece) {
				_, _ = w.Write(piece)
			}
			return nil
		})
		b.Run("response="+name+"/call=no", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_ = next.ServeHTTP(w, r)
			}
		})
		b.Run("response="+name+"/call=yes", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_ = Serve(w, r, next, Options{Store: store, Served: ignored})
			}
		})
	}
}

// ignored is told of the end in tests that do not ask.
func ignored(error) {}
