package engine_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// hostileHeaders are headers with which a client may pretend to be another one,
// or none.
var hostileHeaders = map[string][]string{
	"10 KB":                 {strings.Repeat("k", 10<<10)},
	"NUL":                   {"\x00"},
	"control bytes":         {"\x01\x02\r\n\x7f"},
	"invalid UTF-8":         {"\xff\xfe\xc3"},
	"overlong UTF-8":        {"\xc0\xaf"},
	"the fallback":          {"@client_ip/203.0.113.9"},
	"the shared fallback":   {"@share"},
	"a digest":              {"@sha256:" + strings.Repeat("0", 64)},
	"a placeholder":         {"{http.request.remote.host}"},
	"a part boundary":       {"203.0.113.9/x"},
	"an escaped boundary":   {"203.0.113.9%2Fx"},
	"another address":       {"203.0.113.9"},
	"empty":                 {""},
	"twice":                 {"a", "b"},
	"1,000 hops":            {strings.Repeat("192.0.2.1, ", 999) + "192.0.2.2"},
	"1,000 headers":         strings.Split(strings.Repeat("192.0.2.1,", 999)+"192.0.2.2", ","),
	"a mapped address":      {"::ffff:192.0.2.1"},
	"an address with zone":  {"fe80::1%eth0"},
	"an address with port":  {"192.0.2.1:80"},
	"an obfuscated address": {"for=_hidden;by=unknown"},
	"no address":            {"unknown, , \"::1\""},
}

func TestNoHeaderGetsAClientBehindAProxyAFreshBucket(t *testing.T) {
	s := servertest.Run(t, `{
		servers {
			trusted_proxies static 10.0.0.0/8
			trusted_proxies_strict
		}
	}
	http:// {
		throttle site 3 1/h
		respond ok
	}`)
	through := func(values ...string) int {
		r := servertest.Request("10.0.0.1:1", servertest.Site0)
		r.Header["X-Forwarded-For"] = values
		return s.Do(r).Code
	}
	for range 3 {
		check.Need(t, through("203.0.113.7"), http.StatusOK)
	}
	for what, values := range hostileHeaders {
		// The proxy appends the address that it saw.
		appended := append(append([]string{}, values...), "203.0.113.7")
		check.Equal(t, through(appended...), http.StatusTooManyRequests, "header of its own, after %s", what)
		check.Equal(t, through(strings.Join(appended, ", ")), http.StatusTooManyRequests, "same header, after %s", what)
	}
	check.Equal(t, through("::ffff:203.0.113.7"), http.StatusTooManyRequests, "mapped")
	check.Equal(t, through("203.0.113.8"), http.StatusOK, "somebody else")
}

// HTTP/2 and HTTP/3 keep blanks around values, which the proxy takes off for the upstream.
func TestNoBlanksAroundAValueEscapeAZone(t *testing.T) {
	for zone, header := range map[string][]string{
		"match header_regexp Authorization (?i)^basic\nlimit 1 1/h":                     {"Authorization", "Basic YTpi"},
		"limit 1 1/h\nkey header X-Api-Key":                                             {"X-Api-Key", "demo-key"},
		"limit 1 1/h\nkey header X-Api-Key unlisted skip\noverride demo-key 1 1/h":      {"X-Api-Key", "demo-key"},
		"limit 1 1/h\nmatch expression `{http.request.header.X-Api-Key} == 'demo-key'`": {"X-Api-Key", "demo-key"},
	} {
		s := servertest.RunZone(t, "login", zone, "respond {header."+header[0]+"}")
		for i, blanks := range [][]string{{"", ""}, {" ", ""}, {"", " "}, {"\t ", " \t"}} {
			r := servertest.Request(servertest.Someone, servertest.Site0, header[0], blanks[0]+header[1]+blanks[1])
			r.ProtoMajor = 2
			w := s.Do(r)
			check.That(t, (w.Code == http.StatusOK) == (i == 0), "%s, %q: got %d", zone, blanks, w.Code)
		}
		s.Stop()
	}
}

// Behind an upgrade to HTTP/2, which Hypercorn offers, no handler would see a request.
func TestNoTunnelForOtherRequestsIsOpened(t *testing.T) {
	for upgrade, want := range map[string]string{"h2c": "", "websocket, H2C": "", "websocket": "websocket", "": ""} {
		for _, directive := range []string{"throttle pages 9 1/h", "in_flight workers 9"} {
			s := servertest.Run(t, "http:// {\n"+directive+"\nrespond {header.Upgrade}\n}")
			r := servertest.Request(servertest.Someone, servertest.Site0, "Connection", "Upgrade", "Upgrade", upgrade)
			check.Equal(t, s.Do(r).Body.String(), want, "%s, %q: the upgrade that goes on", directive, upgrade)
			s.Stop()
		}
	}
}

// Broken requests that net/http lets through must not evade the limit.
func TestNoBrokenRequestEscapesTheLimit(t *testing.T) {
	s := servertest.RunZone(t, "site", "key client_ip missing share\nlimit 3 1/h", "respond ok")
	server := httptest.NewServer(s.Server)
	defer server.Close()
	send := func(request string) (status int) {
		conn := check.Must(net.Dial("tcp", server.Listener.Addr().String()))(t)
		defer conn.Close()
		_, _ = io.WriteString(conn, request)
		// Caddy answers a request with a body once the body is complete, or
		// cannot be any more.
		_ = conn.(*net.TCPConn).CloseWrite()
		line, _ := bufio.NewReader(conn).ReadString('\n')
		_, _ = fmt.Sscanf(line, "HTTP/1.1 %d", &status)
		return status
	}
	const plain = "GET / HTTP/1.1\r\nHost: x\r\n\r\n"
	for range 3 {
		check.Need(t, send(plain), http.StatusOK)
	}
	for _, request := range []string{
		plain,
		"GET / HTTP/1.0\r\n\r\n",
		"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n",
		"BREW / HTTP/1.1\r\nHost: x\r\n\r\n",
		"CONNECT x:80 HTTP/1.1\r\nHost: x:80\r\n\r\n",
		"GET http://y/ HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: " + strings.Repeat("x", 10_000) + "\r\n\r\n",
		"GET /" + strings.Repeat("x", 10_000) + " HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: x\r\nConnection: X-Forwarded-For\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\nExpect: 100-continue\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
		"GET / HTTP/1.1\r\nHost: x\r\nX-Api-Key: \x00\r\n\r\n",
	} {
		if got := send(request); got >= 200 && got < 300 {
			t.Errorf("%.60q: got %v, want no success", request, got)
		}
	}
}
