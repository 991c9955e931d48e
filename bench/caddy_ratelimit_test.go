package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	caddyrl "github.com/mholt/caddy-ratelimit"
)

// startOnce starts a Caddy without sites, whose log is thrown away.
var startOnce = sync.OnceFunc(func() {
	must(caddy.Load([]byte(`{"admin":{"disabled":true,"config":{"persist":false}},"logging":{"logs":{"default":{"writer":{"output":"discard"}}}}}`), false))
})

// zones counts those of caddy-ratelimit, which keeps a zone's limiters by its name for as
// long as the process lives.
var zones atomic.Int64

// openCaddyRateLimit opens the whole handler of caddy-ratelimit, which has no library
// inside. Of a refusal it measures the error, but not what Caddy makes of it. It keeps the
// instants of as many events as a limit allows, so limits are of ten.
func openCaddyRateLimit(l limit) store {
	events, window := 10, time.Nanosecond // so that nobody exceeds it
	switch l {
	case closed:
		events, window = 1, l.every
	case lasting:
		window = l.every
	}
	startOnce()
	ctx, cancel := caddy.NewContext(caddy.ActiveContext())
	handler := new(caddyrl.Handler)
	name := fmt.Sprint("zone ", zones.Add(1))
	config := fmt.Sprintf(`{"sweep_interval":"24h","rate_limits":{%q:{"key":"{http.request.header.X-Key}","max_events":%d,"window":%d}}}`, name, events, window)
	must(json.Unmarshal([]byte(config), handler))
	must(handler.Provision(ctx))
	return store{func() take {
		served := false
		next := caddyhttp.HandlerFunc(func(http.ResponseWriter, *http.Request) error {
			served = true
			return nil
		})
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil)
		replacer := caddyhttp.NewTestReplacer(r)
		r = r.WithContext(context.WithValue(r.Context(), caddy.ReplacerCtxKey, replacer))
		value := make([]string, 1)
		r.Header["X-Key"] = value
		return func(key string) bool {
			value[0], served = key, false
			return handler.ServeHTTP(w, r, next) == nil && served
		}
	}, func() {
		must(handler.Cleanup())
		cancel()
	}}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
