package engine_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/engine"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
)

// TestABodyWithoutMemoryIsUnread, and the log says so whether or not it is refused.
func TestABodyWithoutMemoryIsUnread(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := servertest.NewWaitSite(t, "throttle {\nzone items {\nlimit 10 1/d\ncost body_items rows\n}\nzone names {\nlimit 1 1/d\nmatch path /login\nkey field log\n}\n}", 0)
		logged := ""
		s.Serve = func(_ http.ResponseWriter, r *http.Request) error {
			fields, _ := json.Marshal(servertest.Logged(decision.VerdictsOf(r.Context())))
			logged = string(fields)
			return nil
		}
		post := func(addr, path string) *servertest.Visit {
			reader, body := io.Pipe()
			r := httptest.NewRequest(http.MethodPost, "http://example.com"+path, reader)
			r.RemoteAddr = addr + ":1"
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			v := s.Come(r)
			fmt.Fprint(body, "rows=1&log=bob")
			body.Close()
			servertest.Quiet()
			return v
		}
		post(servertest.Office, "/") // is read, and costs 1
		const all = 64 << 20
		if !engine.RequestBuffers.Reserve(all) {
			t.Fatal("got no memory")
		}
		defer engine.RequestBuffers.Return(all)
		post("203.0.113.77", "/login") // has the bucket of unclear forms
		for addr, path := range map[string]string{servertest.Office: "/", "203.0.113.78": "/login"} {
			if v := post(addr, path); v.Code != http.StatusTooManyRequests || v.Header().Get("Retry-After") == "" {
				t.Errorf("%s: got %d, %v, want 429 and a time to wait", path, v.Code, v.Header())
			}
		}
		if post(servertest.Visitor, "/"); !strings.Contains(logged, `"reason":"memory"`) || !strings.Contains(logged, `"cost":10`) {
			t.Errorf("got the log %s, want the reason and the cost of an unread body", logged)
		}
		servertest.WantCounts(t, "items", map[string]float64{"admitted": 3, "refused memory": 1})
		servertest.WantCounts(t, "names", map[string]float64{"admitted": 1, "refused memory": 1})
	})
}
