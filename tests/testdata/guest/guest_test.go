package guest

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	_ "github.com/caddyserver/caddy/v2/modules/standard"
)

const site = `{
	admin off
	persist_config off
	servers {
		trusted_proxies_unix
	}
}
http:// {
	bind unix/SOCKET
	handle /warden {
		warden pages
	}
	handle {
		throttle pages 1 1/d
		respond ok
	}
}`

func TestWarden(t *testing.T) {
	t.Setenv("XDG_DATA_HOME", t.TempDir())
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	socket := t.TempDir() + "/socket"
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	config, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(strings.ReplaceAll(site, "SOCKET", socket)), map[string]any{"filename": "Caddyfile"})
	if err != nil {
		t.Fatal(err)
	}
	if err := caddy.Load(config, true); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = caddy.Stop() }()

	ask := func(method, path, from string) string {
		t.Helper()
		r, err := http.NewRequest(method, "http://site"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-Forwarded-For", from)
		response, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = response.Body.Close() }()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(response.StatusCode, " ", strings.TrimSpace(string(body)))
	}
	for _, step := range []struct{ method, path, from, want string }{
		{"GET", "/warden", "", `200 {"buckets":[]`},
		{"GET", "/", "203.0.113.7", "200 ok"},
		{"GET", "/", "203.0.113.7", "429"},
		{"GET", "/warden", "", `200 {"buckets":[{"zone":"pages","key":"203.0.113.7"`},
		{"POST", "/warden?network=203.0.113.0/24", "", `200 {"kind":"ban"`},
		{"GET", "/", "203.0.113.8", "429"},
		{"DELETE", "/warden?network=203.0.113.0/24", "", `200 {"ended":true`},
		{"GET", "/", "203.0.113.8", "200 ok"},
		{"DELETE", "/warden?network=203.0.113.0/24", "", `200 {"ended":false`},
		{"POST", "/warden?network=nowhere", "", "400"},
	} {
		if got := ask(step.method, step.path, step.from); !strings.HasPrefix(got, step.want) {
			t.Errorf("%s %s: got %q, want %q", step.method, step.path, got, step.want)
		}
	}
}
