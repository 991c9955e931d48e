package admin_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
)

// Whatever somebody asks the admin API, it answers with JSON, or says what is wrong with
// the question.
func FuzzAdminAPI(f *testing.F) {
	var paths []string
	for path, call := range admin.Calls {
		if call.Method == http.MethodPost {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	for i := range paths {
		for _, body := range []string{
			`{"zone": "pages", "key": "203.0.113.7", "limit": "x0.5", "for": "1h", "note": "n"}`,
			`{"zone": "pages", "limit": 5, "sort": "key", "prefix": "\u0000", "min_fraction": -1}`,
			`{"client": "alice", "zone": "account"}`, `{"client": "7k2m-q8xd"}`, `{"network": "203.0.113.0/24", "for": "2h"}`,
			`{"client_ip": "203.0.113.7", "method": "POST", "url": "http://example.com/?a=b", "headers": {"X-Api-Key": "k"}, "body": "log=alice"}`,
			`{"zone": "account", "values": ["alice", ""]}`, `{"by": "/24"}`, `{}`, `null`, `[]`,
		} {
			f.Add(i, body)
		}
	}
	s := servertest.Run(f, `http:// {
		throttle {
			zone pages {
				limit 60 2/s
			}
			zone account {
				key field log fold wordpress
				limit 10 10/h
				block 1h
			}
		}
		respond ok
	}`)
	for _, addr := range []string{"203.0.113.7:1", "[2001:db8::1]:1"} {
		s.From(addr).Get("/")
	}
	a := s.Engine()
	a.Control.Start(a)
	f.Cleanup(func() { a.Control.Stop(a) })
	f.Fuzz(func(t *testing.T, i int, body string) {
		path := paths[int(uint(i)%uint(len(paths)))]
		r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		if err := servertest.ServeAdmin(w, r); err != nil {
			var api caddy.APIError
			if !errors.As(err, &api) || api.HTTPStatus < 400 || api.HTTPStatus > 499 || api.Error() == "" {
				t.Errorf("%s %q: got %v, want an error of the caller", path, body, err)
			}
			return
		}
		if !json.Valid(w.Body.Bytes()) || strings.ContainsAny(w.Body.String(), "\x00\x1b<>") {
			t.Errorf("%s %q: got %q, want JSON without control bytes", path, body, w.Body)
		}
	})
}
