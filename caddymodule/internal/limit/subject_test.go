package limit

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/body"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/form"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// The reverse proxy rewrites these before FastCGI sees them.
func TestWebSocketsThatOpenWithCONNECTAreGETAtTheUpstream(t *testing.T) {
	for _, test := range []struct {
		r    http.Request
		want string
	}{
		{http.Request{Method: "CONNECT", ProtoMajor: 2, Proto: "HTTP/2.0", Header: http.Header{":protocol": {"websocket"}}}, "GET"},
		{http.Request{Method: "CONNECT", ProtoMajor: 3, Proto: "websocket"}, "GET"},
		{http.Request{Method: "CONNECT", ProtoMajor: 2, Proto: "HTTP/2.0", Header: http.Header{":protocol": {"connect-udp"}}}, "CONNECT"},
		{http.Request{Method: "CONNECT", ProtoMajor: 3, Proto: "HTTP/3.0"}, "CONNECT"},
		{http.Request{Method: "CONNECT", ProtoMajor: 1, Proto: "HTTP/1.1"}, "CONNECT"},
		{http.Request{Method: "connect", ProtoMajor: 3, Proto: "websocket"}, "CONNECT"},
		{http.Request{Method: ""}, "POST"},
	} {
		test.r.URL = new(url.URL)
		check.Equal(t, judged(&test.r).Method, test.want, "%+v", test.r)
	}
}

// TestIPv4 asks for the client's address, which Caddy writes into client_ip, and `vars` may.
func TestIPv4(t *testing.T) {
	for _, test := range []struct {
		peer, client string
		want         bool
	}{
		{"203.0.113.7:1234", "203.0.113.7", true},
		{"192.0.2.1:1234", "203.0.113.7", true}, // of a proxy
		{"[2001:db8::1]:1234", "2001:db8::1", false},
		{"[2001:db8::1]:1234", "203.0.113.7", true},
		{"[::ffff:203.0.113.7]:1234", "::ffff:203.0.113.7", false},
		{"[2001:db8::1]:1234", "[2001:db8::1]", false},
		{"[2001:db8::1]:1234", "[2001", false},
		{"203.0.113.7:1234", "203", false},
		{"203.0.113.7:1234", "203.0.113.07", false},
		{"203.0.113.7:1234", "203.0.113.7:1234", false},
		{"203.0.113.7:1234", "", false},
		{":1234", "", false},
		{"@", "", false},
		{"@", "@", false},
	} {
		s := Subject{Request: &http.Request{RemoteAddr: test.peer}, Vars: map[string]any{caddyhttp.ClientIPVarKey: test.client}}
		want := ""
		if test.want {
			want = test.client
		}
		check.Equal(t, s.ipv4(), want, "peer %s, client %s", test.peer, test.client)
	}
}

func TestOnlyRequestsWithOddMethodsAreCopied(t *testing.T) {
	for method, copied := range map[string]bool{"GET": false, "POST": false, "PUT": false, "PROPFIND": false, "CONNECT": false, "get": true, "put": true} {
		r := &http.Request{Method: method, URL: new(url.URL)}
		s := NewSubject(r)
		check.That(t, (s.Judged != r) == copied && s.Request == r && r.Method == method, "%s: got a copy: %v, want %v", method, s.Judged != r, copied)
	}
}

// TestABodyIsReadOnce by all zones: what is closed after the first one could not be read again.
func TestABodyIsReadOnce(t *testing.T) {
	r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(strings.Repeat("a[]", 1<<20/3)+"&log=admin"))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	plan, s := new(form.Plan), NewSubject(r)
	zones := []*Zone{{Key: new(Key), Field: []string{"log"}}, {Key: new(Key), Field: []string{"pwd"}}, {Key: new(Key), Field: []string{"log", "pwd"}}}
	for _, zone := range zones {
		check.OK(t, zone.ReadBy(plan))
	}
	check.OK(t, s.Receive(body.NewStore(t.TempDir(), nil), 0))
	for i, zone := range zones {
		check.Equal(t, zone.carries(&s), i != 1, "zone %d carries a field", i)
		_ = s.Body.Close()
	}
}

// Nearly all queries have octets, and all upstreams read these alike.
func TestAPlainQueryIsReadOnce(t *testing.T) {
	r := caddyhttp.PrepareRequest(httptest.NewRequest(http.MethodGet, "/?s=caf%C3%A9+a%20b&utm_source=x%3Dy&n=1", nil), caddy.NewReplacer(), httptest.NewRecorder(), new(caddyhttp.Server))
	got := testing.AllocsPerRun(100, func() {
		s := NewSubject(r)
		s.lookUpAddresses()
	})
	check.That(t, got <= 1, "got %v allocations, want at most one", got)
}

// Each zone asks, and a client may send thousands of pairs.
func TestWhetherThereArePairsIsKnownWithoutWritingThem(t *testing.T) {
	s := NewSubject(httptest.NewRequest(http.MethodGet, "/a=1/a=2", nil))
	check.That(t, testing.AllocsPerRun(100, func() { check.That(t, s.CarriesAny(), "got none, want pairs") }) == 0, "got allocations, want none")
}

// BenchmarkFieldAbsent is what `field` costs a request without a query and a body.
func BenchmarkFieldAbsent(b *testing.B) {
	r := caddyhttp.PrepareRequest(httptest.NewRequest(http.MethodGet, "/", nil), caddy.NewReplacer(), httptest.NewRecorder(), new(caddyhttp.Server))
	s := NewSubject(r)
	for b.Loop() {
		if s.empty = false; s.CarriesAny() {
			b.Fatal("got a query or a body, want none")
		}
	}
}
