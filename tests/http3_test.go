package tests

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

// newQUICVisitor returns a visitor that speaks HTTP/3. With a cache it resumes
// sessions.
func newQUICVisitor(t *testing.T, sessions tls.ClientSessionCache) *visitor {
	t.Helper()
	transport := &http3.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true, ClientSessionCache: sessions}, // the certificates are caddy's own
		QUICConfig:      &quic.Config{},
	}
	if sessions != nil {
		transport.Dial = func(ctx context.Context, address string, tlsConfig *tls.Config, config *quic.Config) (*quic.Conn, error) {
			return quic.DialAddrEarly(ctx, address, tlsConfig, config)
		}
	}
	t.Cleanup(func() { transport.Close() })
	return &visitor{Client: &http.Client{Transport: transport, Timeout: startTime}, protocol: "h3", address: "127.0.0.1"}
}

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
func startSecure(t *testing.T) (c *caddy, url string) {
	t.Helper()
	port := freePort(t)
	c = startCaddy(t, config{sites: fmt.Sprintf(secureSite, port), protocols: "h1 h2 h3"})
	url = fmt.Sprintf("https://localhost:%d/", port)
	v := newQUICVisitor(t, nil)
	eventually(t, "a certificate", func() bool {
		_, err := v.try(http.MethodGet, url+"ready")
		return err == nil
	})
	return c, url
}

func TestHTTP3IsThrottledAndSharesBucketsWithTheOthers(t *testing.T) {
	t.Parallel()
	_, url := startSecure(t)
	fast, old := newQUICVisitor(t, nil), newVisitorFrom(t, "h1", "127.0.0.1")
	for n, test := range []struct {
		v      *visitor
		status int
		proto  string
	}{
		{fast, 200, "HTTP/3.0"},
		{old, 200, "HTTP/1.1"},
		{fast, 200, "HTTP/3.0"},
		{fast, 429, ""},
		{old, 429, ""},
	} {
		a := test.v.get(t, url)
		if a.status != test.status {
			t.Fatalf("request %d over %s: got %d, want %d", n+1, test.v.protocol, a.status, test.status)
		}
		if test.status == 429 {
			checkRefusal(t, a)
		} else if a.body != test.proto {
			t.Errorf("request %d: got %q, want %q", n+1, a.body, test.proto)
		}
	}
}

func TestEarlyDataIsSentBackBeforeItIsCharged(t *testing.T) {
	t.Parallel()
	var c *caddy
	var url string
	var a answer
	var sessions tls.ClientSessionCache
	// Data that comes when the handshake is complete is not early any more: on a busy
	// machine that takes several tries.
	for range 5 {
		c, url = startSecure(t)
		sessions = tls.NewLRUClientSessionCache(10)
		if a := newQUICVisitor(t, sessions).get(t, url); a.status != 200 {
			t.Fatalf("the first visit: got %d, want 200", a.status)
		}
		if a = newQUICVisitor(t, sessions).send(t, http3.MethodGet0RTT, url); a.status != 200 {
			break
		}
	}
	if a.status != http.StatusTooEarly || a.header.Get("Retry-After") != "" {
		t.Fatalf("early data: got %d with Retry-After %q, want 425 without", a.status, a.header.Get("Retry-After"))
	}
	if got := c.decisions(t, "pages", "admitted"); got != 1 {
		t.Errorf("got %d requests charged, want 1: early data is not", got)
	}
	if got := c.metric(t, "caddy_throttle_requests_total", `zone="pages"`, `reason="early_data"`, `decision="refused"`); got != 1 {
		t.Errorf("got %v counted as early data, want 1", got)
	}
	if a := newQUICVisitor(t, sessions).get(t, url); a.status != 200 {
		t.Errorf("the same after the handshake: got %d, want 200", a.status)
	}
}

// checkRefusal holds for every page that throttle itself writes.
func checkRefusal(t *testing.T, a answer) {
	t.Helper()
	if a.status != 429 {
		t.Errorf("got status %d, want 429", a.status)
	}
	a.retryAfter(t)
	if got := a.header.Get("Cache-Control"); got != "no-store" {
		t.Errorf("got Cache-Control %q, want no-store", got)
	}
	if got := a.header.Get("Content-Type"); !strings.HasPrefix(got, "text/html") {
		t.Errorf("got Content-Type %q, want text/html", got)
	}
	if !strings.Contains(strings.ToLower(a.body), "<html") || !strings.Contains(a.body, "second") {
		t.Errorf("got the page %q, want HTML that says how many seconds to wait", a.body)
	}
}
