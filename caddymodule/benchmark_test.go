package caddymodule_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/config"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// handlerOf returns a handler with zones that are charged together, all of one
// limit.
func handlerOf(t testing.TB, zones int, options string) *caddymodule.Handler {
	t.Helper()
	var block strings.Builder
	for i := range zones {
		key := []string{"client_ip", "host", "client_ip method"}[i%3]
		fmt.Fprintf(&block, "zone zone%d {\nkey %s\n%s\n}\n", i, key, options)
	}
	s := servertest.Run(t, "{\nthrottle {\nstore memory {\nmax_buckets 2000000\n}\n"+block.String()+"}\n}\nhttp:// {\nthrottle zone0\n}")
	names := make([]*limit.Zone, zones)
	for i := range names {
		names[i] = &limit.Zone{Name: fmt.Sprint("zone", i)}
	}
	h := &caddymodule.Handler{Handler: config.Handler{Zone: names}}
	ctx := s.Ctx
	ctx.Context = context.WithValue(ctx.Context, caddyhttp.ServerCtxKey, server) // as the HTTP app does
	check.OK(t, h.Provision(ctx))
	return h
}

// keysOnly returns a function that only builds keys, as any handler with keys
// must.
func keysOnly(h *caddymodule.Handler) func(http.ResponseWriter, *http.Request) {
	return func(_ http.ResponseWriter, r *http.Request) {
		s := limit.NewSubject(r)
		for _, z := range h.Running().Zones {
			if k, why, skip := z.Find(&s); why != limit.None || skip || k.Name == "" {
				panic("no key")
			}
		}
	}
}

func throttled(h *caddymodule.Handler) func(http.ResponseWriter, *http.Request) {
	next := caddyhttp.HandlerFunc(func(http.ResponseWriter, *http.Request) error { return nil })
	return func(w http.ResponseWriter, r *http.Request) {
		if err := h.ServeHTTP(w, r, next); err != nil {
			panic(err)
		}
	}
}

// A discard is a response writer that drops everything.
type discard struct {
	header http.Header
	status int
}

func (d *discard) Header() http.Header { return d.header }

func (d *discard) Write(p []byte) (int, error) { return len(p), nil }

func (d *discard) WriteHeader(status int) { d.status = status }

// server has no access logs.
var server = new(caddyhttp.Server)

// serve handles one request, prepared as Caddy's server does.
func serve(handle func(http.ResponseWriter, *http.Request), w *discard, r *http.Request) {
	clear(w.header)
	handle(w, caddyhttp.PrepareRequest(r, caddy.NewReplacer(), w, server))
}

func BenchmarkHandler(b *testing.B) {
	const open, shut = "limit 100000000 1/s", "limit 1 1/d"
	for _, zones := range []int{1, 3} {
		for _, keys := range []int{1, 1e5} {
			for _, result := range []struct {
				name, limit string
				handle      func(*caddymodule.Handler) func(http.ResponseWriter, *http.Request)
			}{
				{"none", open, keysOnly}, // the baseline: it only builds the keys
				{"allowed", open, throttled},
				{"refused", shut, throttled},
				{"settled", open + "\nsettle bytes 1KiB", throttled},
			} {
				b.Run(fmt.Sprintf("zones=%d/keys=%.0g/result=%s", zones, float64(keys), result.name), func(b *testing.B) {
					h := handlerOf(b, zones, result.limit)
					handle := result.handle(h)
					r := httptest.NewRequest(http.MethodGet, "http://example.com/", nil)
					w := &discard{header: make(http.Header)}
					addrs := make([]string, keys)
					for i := range addrs {
						addrs[i] = fmt.Sprintf("10.%d.%d.%d:1234", i>>16, i>>8&255, i&255)
						r.RemoteAddr = addrs[i]
						serve(handle, w, r) // so that the bucket is there, or full
					}
					b.ReportAllocs()
					i := 0
					for b.Loop() {
						if i++; i == keys {
							i = 0
						}
						r.RemoteAddr = addrs[i]
						serve(handle, w, r)
					}
					if refused := w.status == http.StatusTooManyRequests; refused != (result.name == "refused") {
						b.Errorf("got refused: %v", refused)
					}
				})
			}
		}
	}
}
