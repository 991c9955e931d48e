package accesslog

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// first returns what is read of the first line of a log.
func first(t *testing.T, options Options, line string) (*Request, error) {
	t.Helper()
	options.Stdin = strings.NewReader(line + "\n")
	r := check.Must(Open([]string{"-"}, options))(t)
	defer r.Close()
	return firstOf(r)
}

// TestLogsOfOtherProgramsAreReadByTheNamesOfTheirFields, as these programs write them.
func TestLogsOfOtherProgramsAreReadByTheNamesOfTheirFields(t *testing.T) {
	for name, c := range map[string]struct{ line, want string }{
		"nginx, the request in one field": {
			`{"time_local":"24/Nov/2025:15:19:19 +0000","remote_addr":"192.0.2.7","remote_user":"bob","request":"GET /a/b?x=1 HTTP/1.1","status":"200","body_bytes_sent":"3","request_time":"0.250","http_referrer":"http://x/?q=\"","http_user_agent":"a \"b\" \\ c"}`,
			`15:19:18.75 250ms 192.0.2.7  GET /a/b?x=1 HTTP/1.1 200 3 http://x/?q=" a "b" \ c`,
		},
		"nginx, fields apart": {
			`{"@timestamp":"2025-11-24T15:19:19+00:00","remote_addr":"192.0.2.7","method":"GET","host":"example.com","request_uri":"/a/b?x=1","uri":"/a/b","status":200,"bytes_sent":150,"request_time":0.010,"http_user_agent":"curl/7.88.1","proto":"HTTP/1.1"}`,
			`15:19:18.99 10ms 192.0.2.7 example.com GET /a/b?x=1 HTTP/1.1 200 150  curl/7.88.1`,
		},
		"Traefik": {
			`{"ClientAddr":"192.0.2.7:53452","ClientHost":"192.0.2.7","ClientPort":"53452","ClientUsername":"-","DownstreamContentSize":612,"DownstreamStatus":200,"Duration":1500000,"OriginContentSize":612,"OriginDuration":1400000,"OriginStatus":200,"Overhead":100000,"RequestAddr":"example.com","RequestContentSize":0,"RequestCount":8,"RequestHost":"example.com","RequestMethod":"GET","RequestPath":"/a?b=c","RequestPort":"-","RequestProtocol":"HTTP/2.0","RequestScheme":"https","RetryAttempts":0,"RouterName":"web@docker","StartLocal":"2025-11-24T16:19:18.123456789+01:00","StartUTC":"2025-11-24T15:19:18.123456789Z","entryPointName":"websecure","level":"info","msg":"","request_User-Agent":"curl/8.5.0","time":"2025-11-24T15:19:18Z"}`,
			`15:19:18.123456 1.5ms 192.0.2.7 example.com GET /a?b=c HTTP/2.0 200 612  curl/8.5.0`,
		},
		"Cloudflare": {
			`{"ClientIP":"2001:db8::7","ClientRequestHost":"example.com","ClientRequestMethod":"POST","ClientRequestProtocol":"HTTP/3","ClientRequestReferer":"https://example.com/","ClientRequestURI":"/wp-login.php?a=b","ClientRequestUserAgent":"Mozilla/5.0","EdgeEndTimestamp":"2025-11-24T15:19:19Z","EdgeResponseBytes":4096,"EdgeResponseStatus":200,"EdgeStartTimestamp":"2025-11-24T15:19:18Z","OriginResponseDurationMs":120,"RayID":"41ddf1740f67442d"}`,
			`15:19:18 120ms 2001:db8::7 example.com POST /wp-login.php?a=b HTTP/3 200 4096 https://example.com/ Mozilla/5.0`,
		},
		"Cloudflare, nanoseconds": {
			`{"ClientIP":"192.0.2.7","ClientRequestHost":"example.com","ClientRequestMethod":"GET","ClientRequestURI":"/","EdgeStartTimestamp":1763997558280000000,"EdgeResponseStatus":304}`,
			`15:19:18.28 -1ns 192.0.2.7 example.com GET /  304 -1  `,
		},
	} {
		r, err := first(t, Options{}, c.line)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		referer := ""
		for header, value := range r.Headers() {
			if header == "Referer" {
				referer = value
			}
		}
		got := fmt.Sprint(r.At.Format("15:04:05.999999"), " ", r.Duration, " ", r.Client, " ", r.Host, " ", r.Method, " ", r.URI, " ", r.Proto, " ", r.Status, " ", r.Size, " ", referer, " ", r.Agent)
		check.That(t, got == c.want, "%s: got  %s\nwant %s", name, got, c.want)
	}
}

// TestADurationIsTakenForWhatItIs by what stands beside it, or by --time-field.
func TestADurationIsTakenForWhatItIs(t *testing.T) {
	const combined = `192.0.2.7 - - [24/Nov/2025:15:19:48 +0000] "GET /a HTTP/1.1" 200 3 "-" "x \"y\"" `
	for _, c := range []struct {
		field, line string
		want        time.Duration
	}{
		{"", combined + `118 0.302 [default-web-80] [] 10.0.0.7:80 512 0.300 200 320a6768c3e561c7817a19e6a12a4579`, 302 * time.Millisecond}, // ingress-nginx
		{"", combined + `102 "web@docker" "http://10.0.0.1:80" 5ms`, 5 * time.Millisecond},                                                  // Traefik
		{"", combined + "79 1443", NoDuration}, // Apache's combinedio
		{"", combined + "194", 194 * time.Microsecond},
		{"", combined + "rt=0.250 uct=0.001", 250 * time.Millisecond},
		{"2:ms", combined + "+ 31", 31 * time.Millisecond},
		{"2", combined + `"a b" 0.5`, 500 * time.Millisecond},
		{"3", combined + "0.1 0.2", NoDuration},
		{"urt", combined + "rt=0.5 urt=0.4", 400 * time.Millisecond},
		{"upstream_response_time", `{"time_iso8601":"2025-11-24T15:19:19+00:00","remote_addr":"192.0.2.7","request":"GET / HTTP/1.1","request_time":0.9,"upstream_response_time":"0.7"}`, 700 * time.Millisecond},
		{"took:us", `{"time_iso8601":"2025-11-24T15:19:19+00:00","remote_addr":"192.0.2.7","request":"GET / HTTP/1.1","request_time":0.9,"took":1200}`, 1200 * time.Microsecond},
		{"php:ms", `{"ts":1763997558.5,"logger":"http.log.access","msg":"handled request","request":{"client_ip":"192.0.2.7","method":"GET","host":"x","uri":"/"},"status":200,"duration":9.5,"php":40}`, 40 * time.Millisecond},
	} {
		r, err := first(t, Options{TimeField: c.field}, c.line)
		check.That(t, err == nil && r.Duration == c.want, "--time-field %q: got %v, %v of %s, want %v", c.field, r.Duration, err, c.line, c.want)
	}
	_, err := Open([]string{"-"}, Options{TimeField: "2:h2", Stdin: strings.NewReader("")})
	check.That(t, err != nil && strings.Contains(err.Error(), "want s, ms, us or ns"), "got %v, want an error about the unit", err)
}

// TestAHashIsAClientOfItsOwn, and so is the name of a host, but no dash.
func TestAHashIsAClientOfItsOwn(t *testing.T) {
	const caddy = `{"ts":1763997558.5,"logger":"http.log.access","msg":"handled request","request":{"client_ip":%q,"method":"GET","host":"x","uri":"/"},"status":200}`
	seen := make(map[string]string)
	for _, text := range []string{"b5d4045c", "b5d4045d", "piweba3y.example.com", "192.0.2.7", "fd00::1", "2001:db8::1"} {
		r := check.Must(first(t, Options{}, fmt.Sprintf(caddy, text)))(t)
		key := r.Client.String()
		check.That(t, seen[key] == "" && r.Client.IsValid(), "%s: got the client %s, as %s has", text, key, seen[key])
		seen[key] = text
		got := r.Shown("a/" + key)
		check.That(t, got == "a/"+text && r.StandsIn == strings.ContainsAny(text[:1], "bp"), "%s: got %s shown, stands in: %v", text, got, r.StandsIn)
	}
	for _, text := range []string{"", "-", "@", "REDACTED", "unix:"} {
		r, err := first(t, Options{}, fmt.Sprintf(caddy, text))
		check.That(t, err == nil && !r.Client.IsValid(), "%q: got the client %v, %v, want none", text, r.Client, err)
	}
	r, err := first(t, Options{}, `piweba3y.example.com - - [01/Jul/1995:00:00:09 -0400] "GET /a.html HTTP/1.0" 200 6245`)
	check.That(t, err == nil && r.StandsIn && r.Shown(r.Client.String()) == "piweba3y.example.com", "combined: got the client %v, %v, want one for the name", r.Client, err)
}
