package caddymodule_test

import (
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/engine"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
)

// BenchmarkRank compares a zone that only limits requests in flight with zones that
// share, while nobody waits. A member's request comes with its pass.
func BenchmarkRank(b *testing.B) {
	for _, test := range []struct {
		name, options string
		cookie        bool
	}{
		{"in_flight", "wait 5s", false},
		{"pass-off", "share\npass off", false},
		{"share", "share", false},
		{"issued", "share\nrank member issued sid", false},
		{"member", "share\nrank member issued sid", true},
	} {
		b.Run("zone="+test.name, func(b *testing.B) {
			s := servertest.NewLoginSite(b, b.TempDir(), "zone php {\nkey text all\nin_flight 5 {\n"+test.options+"\n}\n}")
			h := engine.NewHandler(s.Engine(), nil, nil, []*engine.Zone{s.Engine().Zones["php"]})
			r := httptest.NewRequest(http.MethodGet, "http://example.com/", nil)
			r.TLS = &tls.ConnectionState{HandshakeComplete: true}
			w := &discard{header: make(http.Header)}
			next := caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
				w.WriteHeader(http.StatusOK)
				return nil
			})
			handle := func(w http.ResponseWriter, r *http.Request) {
				if err := h.ServeHTTP(w, r, next); err != nil {
					b.Fatal(err)
				}
			}
			if test.cookie {
				login := caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
					w.Header().Add("Set-Cookie", "sid=1; path=/")
					w.WriteHeader(http.StatusOK)
					return nil
				})
				serve(func(w http.ResponseWriter, r *http.Request) { _ = h.ServeHTTP(w, r, login) }, w, r)
				for _, line := range w.header["Set-Cookie"] {
					if pair, err := http.ParseSetCookie(line); err == nil {
						r.AddCookie(&http.Cookie{Name: pair.Name, Value: pair.Value})
					}
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				serve(handle, w, r)
			}
			if w.status != http.StatusOK {
				b.Errorf("got %d", w.status)
			}
		})
	}
}
