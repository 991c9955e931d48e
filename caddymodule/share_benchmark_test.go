package caddymodule_test

import (
	"context"
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/engine"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
)

// turnHandler returns a handler of one zone with five slots, and a request to it. With
// login, the request has the pass of a member.
func turnHandler(b *testing.B, options string, next caddyhttp.Handler, login bool) (func(http.ResponseWriter, *http.Request), *http.Request) {
	s := servertest.NewLoginSite(b, b.TempDir(), "zone php {\nkey text all\nin_flight 5 {\n"+options+"\n}\n}")
	h := engine.NewHandler(s.Engine(), nil, nil, []*engine.Zone{s.Engine().Zones["php"]})
	ctx, cancel := context.WithCancel(b.Context()) // as a server gives each request
	b.Cleanup(cancel)
	r := httptest.NewRequest(http.MethodGet, "http://example.com/", nil).WithContext(ctx)
	r.TLS = &tls.ConnectionState{HandshakeComplete: true}
	if login {
		w := &discard{header: make(http.Header)}
		serve(func(w http.ResponseWriter, r *http.Request) {
			_ = h.ServeHTTP(w, r, caddyhttp.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) error {
				w.Header().Add("Set-Cookie", "sid=1; path=/")
				w.WriteHeader(http.StatusOK)
				return nil
			}))
		}, w, r)
		for _, line := range w.header["Set-Cookie"] {
			if pair, err := http.ParseSetCookie(line); err == nil {
				r.AddCookie(&http.Cookie{Name: pair.Name, Value: pair.Value})
			}
		}
	}
	return func(w http.ResponseWriter, r *http.Request) {
		if err := h.ServeHTTP(w, r, next); err != nil {
			b.Fatal(err)
		}
	}, r
}

// BenchmarkShareOverInFlight compares a zone that only limits requests in flight with
// zones that share, while nobody waits. Requests are handled in parts that take turns.
// Of the times of the parts the least and the first quartile are reported: a busy machine
// leaves short parts alone.
func BenchmarkShareOverInFlight(b *testing.B) {
	for _, next := range []struct {
		name  string
		serve caddyhttp.HandlerFunc
	}{
		{"answers", func(w http.ResponseWriter, _ *http.Request) error {
			w.WriteHeader(http.StatusOK)
			return nil
		}},
		{"watches", func(w http.ResponseWriter, r *http.Request) error { // as a proxy does
			_, cancel := context.WithCancel(r.Context())
			defer cancel()
			w.WriteHeader(http.StatusOK)
			return nil
		}},
	} {
		b.Run("handler="+next.name, func(b *testing.B) { compareTurns(b, next.serve) })
	}
}

func compareTurns(b *testing.B, next caddyhttp.Handler) {
	const part, parts = 64, 2000
	type kind struct {
		name   string
		handle func(http.ResponseWriter, *http.Request)
		raw    *http.Request
		took   []time.Duration
	}
	kinds := []*kind{{name: "in_flight"}, {name: "share"}, {name: "issued"}, {name: "member"}}
	for i, options := range []string{"wait 5s", "share\npass off", "share\nrank member issued sid", "share\nrank member issued sid"} {
		kinds[i].handle, kinds[i].raw = turnHandler(b, options, next, kinds[i].name == "member")
	}
	w := &discard{header: make(http.Header)}
	requests := make([]*http.Request, part)
	for b.Loop() {
		for _, k := range kinds {
			k.took = k.took[:0]
		}
		for range parts {
			for _, k := range kinds {
				for j := range requests {
					requests[j] = caddyhttp.PrepareRequest(k.raw, caddy.NewReplacer(), w, server)
				}
				clear(w.header)
				began := time.Now()
				for _, r := range requests {
					k.handle(w, r)
				}
				k.took = append(k.took, time.Since(began)/part)
			}
		}
	}
	for _, k := range kinds {
		slices.Sort(k.took)
		b.ReportMetric(float64(k.took[0].Nanoseconds()), k.name+"-least-ns")
		b.ReportMetric(float64(k.took[parts/4].Nanoseconds()), k.name+"-quartile-ns")
	}
}
