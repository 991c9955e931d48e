package accesslog

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// A caddyLine is a line of Caddy's access log.
func caddyLine(end time.Time, took time.Duration, ip, uri string) string {
	return fmt.Sprintf(`{"level":"info","ts":%d.%06d,"logger":"http.log.access.log0","msg":"handled request","request":{"remote_ip":"192.0.2.1","remote_port":"4711","client_ip":%q,"proto":"HTTP/2.0","method":"GET","host":"example.com","uri":%q,"headers":{"User-Agent":["Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"],"Accept":["text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"],"Accept-Language":["en-US,en;q=0.5"],"Accept-Encoding":["gzip, deflate, br, zstd"],"Cookie":["REDACTED"],"Sec-Fetch-Mode":["navigate"],"Upgrade-Insecure-Requests":["1"]},"tls":{"resumed":false,"version":772,"cipher_suite":4865,"proto":"h2","server_name":"example.com","ech":false}},"bytes_read":0,"user_id":"","duration":%.9f,"size":5123,"status":200,"resp_headers":{"Server":["Caddy"],"Alt-Svc":["h3=\":443\"; ma=2592000"],"Content-Type":["text/html; charset=UTF-8"]}}`,
		end.Unix(), end.Nanosecond()/1000, ip, uri, took.Seconds())
}

// combinedLine is a line of a combined log.
func combinedLine(at time.Time, ip, uri string) string {
	return fmt.Sprintf(`%s - - [%s] "GET %s HTTP/1.1" 200 203023 "http://example.com/presentations/" "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_9_1) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/32.0.1700.77 Safari/537.36"`,
		ip, at.Format(commonTime), uri)
}

// noon is when the logs of tests begin.
var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// written writes a log and returns its name.
func written(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	check.OK(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// A read request, without what changes with the next.
type seen struct {
	at                               string
	duration                         time.Duration
	client, host, method, uri, proto string
	agent                            string
	status                           int
	size                             int64
	tls                              bool
}

// readAll reads all requests of logs.
func readAll(t *testing.T, options Options, names ...string) (all []seen, stats Stats, err error) {
	t.Helper()
	r, err := Open(names, options)
	if err != nil {
		return nil, stats, err
	}
	defer r.Close()
	for req, err := range r.Requests {
		if err != nil {
			return all, *r.Stats(), err
		}
		all = append(all, seen{
			req.At.Format("15:04:05.999999"), req.Duration, req.Client.String(), strings.Clone(req.Host), strings.Clone(req.Method),
			strings.Clone(req.URI), strings.Clone(req.Proto), strings.Clone(req.Agent), req.Status, req.Size, req.TLS,
		})
	}
	return all, *r.Stats(), nil
}

// firstOf returns the first request.
func firstOf(r *Reader) (*Request, error) {
	for req, err := range r.Requests {
		return req, err
	}
	return nil, io.EOF
}

func TestACaddyLineIsARequestThatArrivedADurationBeforeItWasWritten(t *testing.T) {
	name := written(t, "access.log", caddyLine(noon, 250*time.Millisecond, "2001:db8::1", "/a?b=c")+"\n")
	got, _, err := readAll(t, Options{}, name)
	want := seen{
		"11:59:59.75", 250 * time.Millisecond, "2001:db8::1", "example.com", "GET", "/a?b=c", "HTTP/2.0",
		"Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0", 200, 5123, true,
	}
	check.That(t, err == nil && len(got) == 1 && got[0] == want, "got %+v and %v, want %+v", got, err, want)
}

func TestACombinedLineIsARequest(t *testing.T) {
	for line, want := range map[string]seen{
		`192.0.2.7 - bob [01/Mar/2026:12:00:00 +0000] "GET /a HTTP/1.1" 200 10`:                                 {"12:00:00", NoDuration, "192.0.2.7", "", "GET", "/a", "HTTP/1.1", "", 200, 10, false},
		`192.0.2.7 - - [01/Mar/2026:14:00:00 +0200] "GET /a HTTP/1.1" 304 - "-" "curl/8"`:                       {"12:00:00", NoDuration, "192.0.2.7", "", "GET", "/a", "HTTP/1.1", "curl/8", 304, -1, false},
		`192.0.2.7 - - [01/Mar/2026:12:00:00 +0000] "GET /a HTTP/1.1" 200 1 "-" "x" 1.500`:                      {"11:59:58.5", 1500 * time.Millisecond, "192.0.2.7", "", "GET", "/a", "HTTP/1.1", "x", 200, 1, false},
		`192.0.2.7 - - [01/Mar/2026:12:00:00 +0000] "GET /a HTTP/1.1" 200 1 "-" "x" 1500000`:                    {"12:00:00", 1500 * time.Millisecond, "192.0.2.7", "", "GET", "/a", "HTTP/1.1", "x", 200, 1, false},
		`192.0.2.7 - - [01/Mar/2026:12:00:00 +0000] "GET /a HTTP/1.1" 200 1 "-" "x" "203.0.113.9" rt=0.5 uct=1`: {"11:59:59.5", 500 * time.Millisecond, "192.0.2.7", "", "GET", "/a", "HTTP/1.1", "x", 200, 1, false},
		`www.example.com:443 192.0.2.7 - a b [01/Mar/2026:12:00:00 +0000] "POST /a b HTTP/2.0" 200 1`:           {"12:00:00", NoDuration, "192.0.2.7", "www.example.com:443", "POST", "/a b", "HTTP/2.0", "", 200, 1, false},
		`192.0.2.7 - - [01/Mar/2026:12:00:00 +0000] "GET /\"\x41\\ HTTP/1.1" 200 1 "\"" "\x22"`:                 {"12:00:00", NoDuration, "192.0.2.7", "", "GET", `/"A\`, "HTTP/1.1", `"`, 200, 1, false},
		`192.0.2.7 - [02/Mar/2026:12:00:00 +0000] [01/Mar/2026:12:00:00 +0000] "GET / HTTP/1.0" 200 1`:          {"12:00:00", NoDuration, "192.0.2.7", "", "GET", "/", "HTTP/1.0", "", 200, 1, false},
	} {
		got, _, err := readAll(t, Options{}, written(t, "access.log", line))
		check.That(t, err == nil && len(got) == 1 && got[0] == want, "%s: got\n%+v and %v, want\n%+v", line, got, err, want)
	}
}

func TestAssetsHaveTheirEndings(t *testing.T) {
	for uri, want := range map[string]bool{"/a.css": true, "/a.CSS?x=.html": true, "/a.html": false, "/index.php/x.css": false, "/": false, "/a.woff2": true, "/a.longending": false} {
		check.Equal(t, (&Request{Method: "GET", URI: uri}).Asset(), want, "%s", uri)
	}
	check.That(t, !(&Request{Method: "POST", URI: "/a.css"}).Asset(), "a POST counts as one for an asset")
}

// Lines of Caddy and of a combined log come within those of other programs.
func TestLinesWithinOthersAreRead(t *testing.T) {
	const (
		caddy    = `{"level":"info","ts":1793600000.5,"logger":"http.log.access","msg":"handled request","request":{"client_ip":"203.0.113.7","method":"GET","host":"example.com","uri":"/a?b=\"|\" ","headers":{"User-Agent":["curl"]}},"status":200,"duration":0.1}`
		combined = `203.0.113.7 - - [02/Nov/2026:08:00:00 +0000] "GET /a HTTP/1.1" 200 512 "-" "x | y: {z}"`
	)
	quoted := check.Must(json.Marshal(caddy + "\n"))(t)
	for _, prefix := range []string{
		"", "caddy-1  | ", "site_web.1 | ", "caddy-1  |",
		"2026-11-02T08:00:00.123456789Z stdout F ", "2026-11-02T08:00:00.1+01:00 stderr F ",
		"Nov  2 08:00:00 host caddy[123]: ", "Nov 12 08:00:00 host.example.com nginx: ", "<190>Nov  2 08:00:00 host nginx: ",
		"2026-11-02T08:00:00+0100 host caddy[1]: ", "2026-11-02T08:00:00.5+01:00 host caddy[1]: ",
	} {
		for _, line := range []string{caddy, combined} {
			if got := unwrap(prefix + line); got != line && prefix != "caddy-1  |" {
				t.Errorf("prefix %q: got %s, want %s", prefix, got, line)
			}
		}
	}
	check.Equal(t, unwrap(`{"log":`+string(quoted)+`,"stream":"stderr","time":"2026-11-02T08:00:00Z"}`), caddy, "Caddy's line within Docker's")
	// What clients write is not taken for a prefix.
	for _, line := range []string{
		`203.0.113.7 - a | b [02/Nov/2026:08:00:00 +0000] "GET / HTTP/1.1" 200 5`, `example.com:443 203.0.113.7 - - [02/Nov/2026:08:00:00 +0000] "GET / | HTTP/1.1" 200 5`,
		`2001:db8::1 - - [02/Nov/2026:08:00:00 +0000] "GET / HTTP/1.1" 200 5`, `{"log":5,"request":{}}`, `{"A":1}`, `- | `, `Mon`,
	} {
		check.Equal(t, unwrap(line), line, "want it as it is")
	}
}
