package engine_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/body"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// TestABodyWithoutRoomIsUnread, and the log says so whether or not it is refused.
func TestABodyWithoutRoomIsUnread(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := servertest.NewWaitSite(t, "throttle {\nzone items {\nlimit 10 1/d\ncost body_items rows\n}\nzone names {\nlimit 1 1/d\nmatch path /login\nkey field log\n}\n}", 0)
		logged := ""
		s.Serve = func(_ http.ResponseWriter, r *http.Request) error {
			fields, _ := json.Marshal(servertest.Logged(limit.VerdictsOf(r.Context())))
			logged = string(fields)
			return nil
		}
		post := func(addr, path string) *servertest.Visit {
			reader, sent := io.Pipe()
			r := httptest.NewRequest(http.MethodPost, "http://example.com"+path, reader)
			r.RemoteAddr = addr + ":1"
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			v := s.Come(r)
			fmt.Fprint(sent, "rows=1&log=bob&pad="+strings.Repeat("x", 2000))
			sent.Close()
			servertest.Quiet()
			return v
		}
		post(servertest.Office, "/") // is read, and costs 1
		bodies := s.Engine().Control.Bodies
		bodies.SetBounds(body.Bounds{Memory: 1, Files: 1})
		defer bodies.SetBounds(body.Bounds{})
		post("203.0.113.77", "/login") // has the bucket of unclear forms
		for addr, path := range map[string]string{servertest.Office: "/", "203.0.113.78": "/login"} {
			v := post(addr, path)
			check.That(t, v.Code == http.StatusTooManyRequests && v.Header().Get("Retry-After") != "", "%s: got %d, %v, want 429 and a time to wait", path, v.Code, v.Header())
		}
		post(servertest.Visitor, "/")
		check.That(t, strings.Contains(logged, `"reason":"memory"`) && strings.Contains(logged, `"cost":10`), "got the log %s, want the reason and the cost of an unread body", logged)
		servertest.WantCounts(t, "items", map[string]float64{"admitted": 3, "refused memory": 1})
		servertest.WantCounts(t, "names", map[string]float64{"admitted": 1, "refused memory": 1})
	})
}
