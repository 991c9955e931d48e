package requests

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

// sees is what an upstream sees of a request, and what throttle told it of that.
type sees struct {
	Passwords int
	Users     []*[]byte // nil is none that is text
	Zone, Key string
}

// overlooked says what throttle got wrong about a request, or nothing. What it could not read for
// sure is charged to @unclear, and a user without a name counts as none.
func (s *sees) overlooked() string {
	if s.Passwords == 0 || s.Key == "@unclear" {
		return ""
	}
	if s.Zone != "login" {
		return "a password was overlooked"
	}
	key, err := url.PathUnescape(s.Key)
	fold := func(user string) string { return strings.ToLower(strings.Trim(user, " \t\n\v\f\r\x00")) }
	if key == "@share" {
		key = ""
	}
	for _, user := range s.Users {
		if err != nil || user == nil || fold(string(*user)) != key && !strings.HasPrefix(s.Key, "@sha256:") {
			return "another user was charged"
		}
	}
	return ""
}

// forms are pieces of requests, by kind of body: pairs, parts and JSON.
var forms = [3][]string{
	{"pwd=x", "log=a", "&", "&", "&", "=", "pwd", "log", "user[password]=x", "user%5Bpassword%5D=", "pwd[]=x", "p.wd=x", "%70wd=x", "log=b", "log[]=a", ";", "+", "%00", "[", "]", "%", "x=y", " ", "\n", "\x00", "\xff", "user", "[password]", "pwd%00=x", "&pwd=", "{", "\"", "PWD=x", "_"},
	{
		"--x\r\nContent-Disposition: form-data; name=\"pwd\"\r\n\r\nx\r\n", "--x\r\nContent-Disposition: form-data; name=\"log\"\r\n\r\na\r\n", "--x\r\n", "--x--\r\n", "--x", "\r\n", "\r\n\r\n", "\n", "Content-Disposition: form-data; name=", "pwd", "\"pwd\"", "'pwd'", "\"", ";", "; filename=\"a\"", "; name=log", "x",
		"--x\ncontent-disposition:form-data;name=pwd\n\nx\n", "content-type: text/plain\r\n", "Content-Transfer-Encoding: base64\r\n", "user[password]", "--x\r\nContent-Disposition: form-data; name=\"user[password]\"\r\n\r\nx\r\n", "\t", "\\", "--x\r\nContent-Disposition: form-data; filename=\"a\"; name=\"pwd\"\r\n\r\nx\r\n", "\x00",
	},
	{"{", "}", "[", "]", ",", ":", `"pwd":"x"`, `"log":"a"`, `{"pwd":"x","log":"a"}`, `"user":{"password":1}`, `"\u0070wd":1`, `"pwd"`, `"`, `\`, "1", "null", " ", "\ufeff", "\x00", `"log":["a"]`, `{"log":"b"`, "/**/", "\n", `"log\u0000":1`, "\xff", `"x":{`, "true", `{"user":`, `{"password":"x"}`, `"pwd":null`},
}

// typesOf are types of bodies, by kind.
var typesOf = [3][]string{
	{system.Urlencoded, system.Urlencoded, system.Urlencoded + "; charset=UTF-8", system.Urlencoded + ";charset=utf-16", "Application/X-WWW-Form-URLEncoded", system.Urlencoded + " x", system.Urlencoded + ",text/plain", "text/plain", ""},
	{"multipart/form-data; boundary=x", "multipart/form-data; boundary=x", `multipart/form-data; boundary="x"`, "multipart/form-data;charset=a;boundary=x", "multipart/form-data, boundary=x", "Multipart/Form-Data; BOUNDARY=x", "multipart/form-data; boundary=y; boundary=x", "multipart/mixed; boundary=x", "multipart/form-data; xboundary=x", "multipart/form-data", `multipart/form-data; boundary="x`, "multipart/form-data ; boundary=x;"},
	{"application/json", "application/json", "application/vnd.api+json", "text/plain", system.Urlencoded, "", "application/octet-stream", "text/json; charset=utf-16"},
}

// requestByChance writes a request, of which servers may make what they like.
func requestByChance(random *rand.Rand, path string) (method, text string) {
	one := func(of []string) string { return of[random.IntN(len(of))] }
	some := func(of []string, most int) string {
		var text strings.Builder
		for range random.IntN(most) {
			text.WriteString(one(of))
		}
		return text.String()
	}
	kind := random.IntN(len(forms))
	body, contentType := some(forms[kind], 12), one(typesOf[kind])
	switch {
	case random.IntN(8) == 0:
		contentType = one(typesOf[random.IntN(len(typesOf))])
	case kind == 1 && random.IntN(2) == 0:
		body += "\r\n--x--\r\n"
	}
	method = one([]string{"POST", "POST", "POST", "POST", "GET", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD", "PROPFIND"})
	php := strings.HasSuffix(path, ".php") // Puma never answers what is odd in the first line
	if php && random.IntN(8) == 0 {
		method = one([]string{"post", "get"})
	}
	if php && random.IntN(4) == 0 {
		path += "?" + strings.Map(func(c rune) rune {
			if c <= ' ' || c >= 0x7f {
				return -1
			}
			return c
		}, some(forms[0], 6))
	}
	var request strings.Builder
	fmt.Fprintf(&request, "%s %s HTTP/1.1\r\nHost: example.com\r\n", method, path)
	if contentType != "" {
		fmt.Fprintf(&request, "Content-Type: %s\r\n", contentType)
	}
	request.WriteString(some([]string{
		"Expect: 100-continue\r\n", "Content-Encoding: identity\r\n", "Content-Encoding: gzip\r\n", "X-HTTP-Method-Override: GET\r\n",
		"Content-Type: application/json\r\n", "Content-Type: text/plain\r\n", "Cookie: pwd=x\r\n", "Accept: text/html\r\n", "X-Zone: login\r\n", "Connection: content-type\r\n",
	}, 3))
	if random.IntN(2) == 0 {
		fmt.Fprintf(&request, "Content-Length: %d\r\n\r\n%s", len(body), body)
		return method, request.String()
	}
	request.WriteString("Transfer-Encoding: chunked\r\nTrailer: X-Pwd\r\n\r\n")
	for len(body) > 0 {
		n := 1 + random.IntN(len(body))
		fmt.Fprintf(&request, "%x;pwd=x\r\n%s\r\n", n, body[:n])
		body = body[n:]
	}
	request.WriteString("0\r\n" + one([]string{"", "X-Pwd: x\r\n", "pwd: x\r\n"}) + "\r\n")
	return method, request.String()
}

// TestNoPasswordIsOverlooked holds a zone with fields to what php-fpm and Puma see of requests
// that are written by chance. With TEST_LONG=<duration>, it goes on for so long.
func TestNoPasswordIsOverlooked(t *testing.T) {
	for _, site := range []system.Site{system.PHPSite(t), system.RackSite(t)} {
		t.Run(site.Name, func(t *testing.T) {
			port := servertest.FreePort(t)
			system.StartCaddy(t, system.Config{Sites: fmt.Sprintf(`
http://:%d {
	route {
		throttle {
			zone login {
				field pwd user[password]
				key field log {
					plain
				}
				limit 1000000 1000000/s
			}
		}
		request_header X-Zone {http.throttle.zone}
		request_header X-Key {http.throttle.key}
		%s
	}
}`, port, site.Directives)})
			seed, least := uint64(1), 500
			var until time.Time
			if long, err := time.ParseDuration(os.Getenv("TEST_LONG")); err == nil {
				seed, until = rand.Uint64(), time.Now().Add(long)
			}
			random := rand.New(rand.NewPCG(seed, 2))
			path := map[string]string{"php": "/fields.php", "rack": "/fields"}[site.Name]
			sent, seen, plain := 0, 0, 0
			var conn net.Conn
			var answers *bufio.Reader
			for ; sent < least || time.Now().Before(until); sent++ {
				if conn == nil {
					var err error
					if conn, err = net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err != nil {
						t.Fatal(err)
					}
					answers = bufio.NewReader(conn)
				}
				method, text := requestByChance(random, path)
				answer, err := roundTrip(conn, answers, method, text)
				if err != nil || answer.Close {
					conn.Close()
					conn = nil
				}
				if err != nil || answer.Header.Get("X-Sees") == "" {
					continue // no request of HTTP, or the upstream refuses it
				}
				var got sees
				err = json.Unmarshal([]byte(answer.Header.Get("X-Sees")), &got)
				check.Assume(t, err == nil, "%v in %q", err, answer.Header)
				if got.Passwords > 0 {
					if seen++; got.Key != "@unclear" {
						plain++
					}
				}
				wrong := got.overlooked()
				check.Assume(t, wrong == "", "seed %d: %s: %s is told %+v of\n%q", seed, wrong, site.Name, got, text)
			}
			t.Logf("%d requests from seed %d: %d with a password that %s sees, of which %d were plain", sent, seed, seen, site.Name, plain)
			check.That(t, plain != 0, "got no request whose password was read, want some")
		})
	}
}

// roundTrip sends a request, and reads the head of its answer and skips the rest.
func roundTrip(conn net.Conn, answers *bufio.Reader, method, text string) (answer *http.Response, err error) {
	if err = conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return nil, err
	}
	if _, err = io.WriteString(conn, text); err != nil {
		return nil, err
	}
	for answer == nil || answer.StatusCode < 200 {
		if answer, err = http.ReadResponse(answers, &http.Request{Method: method}); err != nil {
			return nil, err
		}
	}
	defer answer.Body.Close()
	_, err = io.Copy(io.Discard, answer.Body)
	return answer, err
}
