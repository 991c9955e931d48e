package requests

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
	"github.com/quic-go/quic-go/http3"
)

const secureSite = `
https://localhost:%d {
	tls internal
	throttle {
		zone pages {
			exempt {
				path /ready
			}
			limit 3 1/m
		}
	}
	respond {http.request.proto}
}`

// startSecure starts a site with TLS and returns its address.
func startSecure(t *testing.T) (c *system.Caddy, url string) {
	t.Helper()
	port := servertest.FreePort(t)
	c = system.StartCaddy(t, system.Config{Sites: fmt.Sprintf(secureSite, port), Protocols: "h1 h2 h3"})
	url = fmt.Sprintf("https://localhost:%d/", port)
	v := system.NewQUICVisitor(t, nil)
	system.Eventually(t, "a certificate", func() bool {
		_, err := v.Try(http.MethodGet, url+"ready")
		return err == nil
	})
	return c, url
}

func TestHTTP3IsThrottledAndSharesBucketsWithTheOthers(t *testing.T) {
	t.Parallel()
	_, url := startSecure(t)
	fast, old := system.NewQUICVisitor(t, nil), system.NewVisitorFrom(t, "h1", "127.0.0.1")
	for n, test := range []struct {
		v      *system.Visitor
		status int
		proto  string
	}{
		{fast, 200, "HTTP/3.0"},
		{old, 200, "HTTP/1.1"},
		{fast, 200, "HTTP/3.0"},
		{fast, 429, ""},
		{old, 429, ""},
	} {
		a := test.v.Get(t, url)
		check.Need(t, a.Status, test.status, "request %d over %s", n+1, test.v.Protocol)
		if test.status == 200 && a.Body != test.proto {
			t.Errorf("request %d: got %q, want %q", n+1, a.Body, test.proto)
		}
	}
}

func TestEarlyDataIsSentBackBeforeItIsCharged(t *testing.T) {
	t.Parallel()
	var c *system.Caddy
	var url string
	var a system.Answer
	var sessions tls.ClientSessionCache
	// Data that comes when the handshake is complete is not early any more: on a busy
	// machine that takes several tries.
	for range 5 {
		c, url = startSecure(t)
		sessions = tls.NewLRUClientSessionCache(10)
		check.Need(t, system.NewQUICVisitor(t, sessions).Get(t, url).Status, 200, "the first visit")
		if a = system.NewQUICVisitor(t, sessions).Send(t, http3.MethodGet0RTT, url); a.Status != 200 {
			break
		}
	}
	if a.Status != http.StatusTooEarly || a.Header.Get("Retry-After") != "" {
		t.Fatalf("early data: got %d with Retry-After %q, want 425 without", a.Status, a.Header.Get("Retry-After"))
	}
	check.Equal(t, c.Decisions(t, "pages", "admitted"), 1, "requests charged, want 1: early data is not")
	check.Equal(t, c.Metric(t, "caddy_throttle_requests_total", `zone="pages"`, `reason="early_data"`, `decision="refused"`), 1, "counted as early data")
	check.Equal(t, system.NewQUICVisitor(t, sessions).Get(t, url).Status, 200, "the same after the handshake")
}
