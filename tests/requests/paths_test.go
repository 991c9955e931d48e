package requests

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

// spellings are ways to write a request that php-fpm may run wp-login.php for.
var spellings = []string{
	"/wp-login.php", "/wp-login.php?x", "/wp-login.php??", "/wp-login.php/", "/wp-login.php//", "/wp-login.php/x",
	"/wp-login.php/x/y.php", "/wp-login.php/index.php", "/wp-login.php/../index.php", "/wp-login.php/..", "/wp-login.php/.",
	"/wp-login.php.", "/wp-login.php;x", "/wp-login.php;/x", "/wp-login.php%3fx", "/wp-login.php%3Bx", "/wp-login.php%2f",
	"/wp-login.php%2Fx", "/wp-login.php%252f", "/wp-login.php%20", "/wp-login.php%00", "/wp-login.php%00.php", "/wp-login.php%0a",
	"/wp-login.php%5c", `/wp-login.php\x`, "//wp-login.php", "///wp-login.php", "//wp-login.php//x", "/./wp-login.php",
	"/././/wp-login.php", "/.//wp-login.php", "//./wp-login.php/x", "/foo/../wp-login.php", "/foo/..//wp-login.php",
	"/foo/../../wp-login.php", "/../wp-login.php", "/../../wp-login.php", "/index.php/../wp-login.php", "/index.php/wp-login.php",
	"/index.php/x/../../wp-login.php/y", "/assets/../wp-login.php", "/assets/../wp-login.php/style.css", "/wp-login.php/style.css",
	"/wp%2Dlogin.php", "/wp%2dlogin.php", "/%77p-login.php", "/%77%70%2d%6c%6f%67%69%6e%2e%70%68%70", "/wp-login%2ephp",
	"/wp-login%2Ephp/x", "/wp-login%252ephp", "/wp-login.ph%70", "/wp-login.ph%70/x", "/%2e/wp-login.php", "/%2e%2e/wp-login.php",
	"/foo/%2e%2e/wp-login.php", "/foo/.%2e/wp-login.php", "/foo/%2e./wp-login.php", "/foo/%2e%2e%2fwp-login.php",
	"/foo/..%2fwp-login.php", "/foo%2f..%2fwp-login.php", "/%2fwp-login.php", "/%2Fwp-login.php/x", "/.%2fwp-login.php",
	"/%2e%2fwp-login.php", "/%2f%2fwp-login.php", `/\wp-login.php`, `/foo\..\wp-login.php`, "/%5cwp-login.php", "/WP-LOGIN.PHP",
	"/Wp-Login.php", "/wp-login.PHP", "/WP-LOGIN.php/x", "/%57P-LOGIN.php", "/wp-login.php%c0%af", "/%c0%afwp-login.php",
	"/wp-login%ef%bc%8ephp", "/wp-login", "/wp-login.phtml", "/?/wp-login.php", "/index.php?/wp-login.php",
	"http://127.0.0.1/wp-login.php", "http://127.0.0.1//wp-login.php", "http://elsewhere.example/wp-login.php/x",
	"http://elsewhere.example/foo/%2e%2e/wp-login.php", "http://elsewhere.example/wp%2dlogin.php",
}

// TestNoSpellingOfALoginPathGetsAFreePass fills the login bucket of a visitor and
// then asks for the login in another spelling. If PHP runs wp-login.php, the zone
// has missed the request.
func TestNoSpellingOfALoginPathGetsAFreePass(t *testing.T) {
	t.Parallel()
	php := system.PHPSite(t)
	for _, pattern := range []string{"path /wp-login.php*", "path_regexp (?i)^/+wp-login\\.php"} {
		t.Run(strings.Fields(pattern)[0], func(t *testing.T) {
			t.Parallel()
			port := servertest.FreePort(t)
			system.StartCaddy(t, system.Config{Sites: fmt.Sprintf(`
http://:%d {
	throttle {
		zone login {
			match {
				%s
			}
			key client_ip route
			route login /wp-login.php*
			limit 1 1/d
		}
	}
	%s
}`, port, pattern, php)})
			target := fmt.Sprintf("127.0.0.1:%d", port)

			ran := 0
			var table strings.Builder
			bypassed := false
			for _, spelling := range spellings {
				for _, protocol := range system.Protocols {
					v := system.NewVisitor(t, protocol)
					first := v.Get(t, "http://"+target+"/wp-login.php")
					check.Assume(t, first.Status == 200 && ranLogin(first.Body), "got %d %q for the first login, want it to run", first.Status, first.Body)
					status, body := askSpelled(v, t, target, spelling)
					what := "not run"
					switch {
					case ranLogin(body):
						what, bypassed = "RUN FOR FREE", true
					case status == 429:
						what, ran = "charged", ran+1
					case status >= 500:
						what, bypassed = "AN ERROR", true
					}
					fmt.Fprintf(&table, "%-48s %s %3d %s\n", spelling, protocol, status, what)
				}
			}
			check.That(t, !bypassed, "got passes past the login zone, want none:\n%s", table.String())
			check.That(t, ran != 0, "got no spelling that was charged, want most:\n%s", table.String())
		})
	}
}

func ranLogin(body string) bool { return strings.Contains(body, "executed: wp-login.php") }

// askSpelled sends a request target exactly as it is written, unlike well-behaved
// clients.
func askSpelled(v *system.Visitor, t *testing.T, address, spelling string) (status int, body string) {
	t.Helper()
	if v.Protocol == "h1" {
		return askRaw(v, t, address, "GET "+spelling+" HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
	}
	host, path := address, spelling
	if rest, absolute := strings.CutPrefix(spelling, "http://"); absolute {
		slash := strings.IndexByte(rest, '/')
		host, path = rest[:slash], rest[slash:]
	}
	req := &http.Request{
		Method: "GET", Host: host, Header: http.Header{},
		URL: &url.URL{Scheme: "http", Host: address, Opaque: "//" + host + path},
	}
	a, err := v.Fetch(req)
	check.OK(t, err, "asking for %s over h2", spelling)
	return a.Status, a.Body
}

// askRaw writes bytes to a connection of the visitor's and reads one response. If
// the connection closes without a response, the status is 0.
func askRaw(v *system.Visitor, t *testing.T, address, request string) (status int, body string) {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(v.Address)}}
	conn, err := dialer.DialContext(t.Context(), "tcp", address)
	check.OK(t, err, "dialing %s", address)
	defer conn.Close()
	check.OK(t, conn.SetDeadline(time.Now().Add(system.StartTime)))
	if _, err := io.WriteString(conn, request); err != nil {
		return 0, ""
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, ""
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	check.OK(t, err, "reading the response to %.80q", request)
	return resp.StatusCode, string(text)
}
