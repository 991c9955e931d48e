package accesslog

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// readAs returns what is read of the first line of a log, as a text.
func readAs(t *testing.T, options Options, line string) (string, error) {
	t.Helper()
	r, err := first(t, options, line)
	if err != nil {
		return "", err
	}
	check.Equal(t, r.Client.String(), r.ClientText, "the client")
	return fmt.Sprint(r.At.Format("15:04:05.999999"), " ", r.Duration, " ", r.ClientText, " ", r.Host, " ", r.Method, " ", r.URI, " ", r.Status, " ", r.Size, " ", r.Agent), nil
}

// TestLinesOfOtherProgramsAreRead, by a table of their formats.
func TestLinesOfOtherProgramsAreRead(t *testing.T) {
	for name, c := range map[string]struct{ line, want string }{
		"nginx, ISO 8601":          {`192.0.2.7 - - [2026-11-02T09:00:00+01:00] "GET /a?b HTTP/1.1" 404 5 "-" "curl/8" 0.5`, `07:59:59.5 500ms 192.0.2.7  GET /a?b 404 5 curl/8`},
		"LiteSpeed":                {`"192.0.2.7 - - [02/Nov/2026:08:00:00 +0000] "GET /a?b HTTP/1.1" 404 5 "-" "curl/8""`, `08:00:00 -1ns 192.0.2.7  GET /a?b 404 5 curl/8`},
		"Nginx Proxy Manager":      {`[02/Nov/2026:08:00:00 +0000] - 404 404 - GET https example.com "/a?b" [Client 192.0.2.7] [Length 5] [Gzip -] [Sent-to 10.0.0.2] "curl/8" "-"`, `08:00:00 -1ns 192.0.2.7 example.com GET /a?b 404 5 curl/8`},
		"Nginx Proxy Manager's":    {`[02/Nov/2026:08:00:00 +0000] 404 - GET https example.com "/a?b" [Client 192.0.2.7] [Length 5] [Gzip -] "curl/8" "-"`, `08:00:00 -1ns 192.0.2.7 example.com GET /a?b 404 5 curl/8`},
		"HAProxy":                  {`Nov  2 08:00:00 lb haproxy[674]: 192.0.2.7:33319 [02/Nov/2026:08:00:00.123] www~ app/srv1 9/0/7/147/723 404 5 - - ---- 1/3/3/2/0 0/0 {x|y} "GET /a?b HTTP/1.0"`, `08:00:00.123 723ms 192.0.2.7  GET /a?b 404 5 `},
		"HAProxy, IPv6":            {`2001:db8::7:33319 [02/Nov/2026:08:00:00.123] www app/srv1 9/0/7/147/+723 404 5 - - ---- 1/3/3/2/0 0/0 "GET /a?b HTTP/1.0"`, `08:00:00.123 723ms 2001:db8::7  GET /a?b 404 5 `},
		"Envoy, JSON":              {`{"start_time":"2026-11-02T08:00:00.310Z","method":"GET","path":"/a?b","protocol":"HTTP/1.1","response_code":404,"bytes_sent":5,"duration":226,"x_forwarded_for":"192.0.2.7","user_agent":"curl/8","authority":"example.com"}`, `08:00:00.31 226ms 192.0.2.7 example.com GET /a?b 404 5 curl/8`},
		"lograge":                  {`I, [2026-11-02T08:00:00.5 #123]  INFO -- : [id] method=GET path=/a?b format=html controller=X action=show status=404 duration=250.5 view=4.5 ip=192.0.2.7 host=example.com`, `08:00:00.2495 250.5ms 192.0.2.7 example.com GET /a?b 404 -1 `},
		"lograge, JSON":            {`{"method":"GET","path":"/a?b","controller":"X","status":404,"duration":250,"ip":"192.0.2.7","@timestamp":"2026-11-02T08:00:00.5Z"}`, `08:00:00.25 250ms 192.0.2.7  GET /a?b 404 -1 `},
		"a list, last":             {`10.0.0.1 - - [02/Nov/2026:08:00:00 +0000] "GET /a?b HTTP/1.1" 404 5 "-" "curl/8" "192.0.2.7, 198.51.100.2"`, `08:00:00 -1ns 192.0.2.7  GET /a?b 404 5 curl/8`},
		"a list, first":            {`10.0.0.9, 192.0.2.7, 198.51.100.2 - - [02/Nov/2026:08:00:00 +0000] "GET /a?b HTTP/1.1" 404 5 "-" "curl/8"`, `08:00:00 -1ns 192.0.2.7  GET /a?b 404 5 curl/8`},
		"a list, first, in quotes": {`"192.0.2.7, 198.51.100.2" - - [02/Nov/2026:08:00:00 +0000] "GET /a?b HTTP/1.1" 404 5 "-" "curl/8"`, `08:00:00 -1ns 192.0.2.7  GET /a?b 404 5 curl/8`},
		"Rack, Werkzeug":           {`192.0.2.7 - - [02/Nov/2026 08:00:00] "GET /a?b HTTP/1.1" 404 5`, `08:00:00 -1ns 192.0.2.7  GET /a?b 404 5 `},
		"a port":                   {`192.0.2.7:4431 - - [02/Nov/2026:08:00:00 +0000] "GET /a?b HTTP/1.1" 404 5 "-" "curl/8"`, `08:00:00 -1ns 192.0.2.7  GET /a?b 404 5 curl/8`},
		"brackets":                 {`[2001:db8::7]:4433 - - [02/Nov/2026:08:00:00 +0000] "GET /a?b HTTP/1.1" 404 5 "-" "curl/8"`, `08:00:00 -1ns 2001:db8::7  GET /a?b 404 5 curl/8`},
	} {
		got, err := readAs(t, Options{}, c.line)
		check.That(t, err == nil && got == c.want, "%s: got  %s, %v\nwant %s", name, got, err, c.want)
	}
}

// TestTwoLinesOfRailsAreARequest, if they have the same process and tags.
func TestTwoLinesOfRailsAreARequest(t *testing.T) {
	const plain = `Started GET "/a?b" for 192.0.2.1 at 2026-11-02 08:00:00 +0000
Processing by A#b as HTML
Completed 200 OK in 12ms (Views: 5.0ms)

Started GET "/none" for 192.0.2.2 at 2026-11-02 08:00:01 +0000
  
ActionController::RoutingError (No route matches [GET] "/none"):
Started POST "/c" for 192.0.2.3 at 2026-11-02 08:00:02 +0000
`
	const tagged = `D, [2026-11-02T07:00:00.1 #6] DEBUG -- :  (9.3ms) CREATE TABLE carts
I, [2026-11-02T08:00:00.1 #7]  INFO -- : [x] Started GET "/a?b" for 192.0.2.1 at 2026-11-02 08:00:00 +0000
I, [2026-11-02T08:00:00.2 #7]  INFO -- : [y] Started GET "/none" for 192.0.2.2 at 2026-11-02 08:00:01 +0000
I, [2026-11-02T08:00:00.3 #8]  INFO -- : [x] Started POST "/c" for 192.0.2.3 at 2026-11-02 08:00:02 +0000
I, [2026-11-02T08:00:00.4 #7]  INFO -- : [x] Completed 200 OK in 12ms (Views: 5.0ms)
F, [2026-11-02T08:00:00.5 #7] FATAL -- : [y] ActionController::RoutingError (No route matches [GET] "/none"):
I, [2026-11-02T08:00:00.6 #9]  INFO -- : [z] Completed 500 Internal Server Error in 7ms
`
	for _, log := range []string{plain, tagged} {
		got, stats, err := readAll(t, Options{}, written(t, "production.log", log))
		s := ""
		for _, r := range got {
			s += fmt.Sprint(r.at, " ", r.duration, " ", r.client, " ", r.method, " ", r.uri, " ", r.status, "\n")
		}
		want := "08:00:00 12ms 192.0.2.1 GET /a?b 200\n08:00:01 -1ns 192.0.2.2 GET /none 404\n08:00:02 -1ns 192.0.2.3 POST /c 0\n"
		check.That(t, err == nil && s == want && stats.Unreadable == 0, "got %s, %+v, %v, want %s of %s", s, stats, err, want, log)
	}
	_, stats, err := readAll(t, Options{}, written(t, "production.log", "Started GET \"/cable\" for 192.0.2.1 at 2026-11-02 08:00:00 +0000\n"+strings.Repeat("x\n", 9)))
	check.That(t, err == nil && stats.Requests == 1, "got %+v and %v, want a request that never ended", stats, err)
}

// TestWhatIsNotKnownOfRailsIsNotGuessed: a process that serves several requests at once does not say
// which of them has ended, and the log has no tags.
func TestWhatIsNotKnownOfRailsIsNotGuessed(t *testing.T) {
	log, at := "", 0
	say := func(what string) {
		log += "I, [2026-11-02T08:00:00.1 #7]  INFO -- : " + what + "\n"
	}
	started := func(path string) {
		at++
		say(fmt.Sprintf(`Started GET "%s" for 192.0.2.1 at 2026-11-02 08:00:%02d +0000`, path, at))
	}
	started("/alone")
	say("Completed 200 OK in 12ms")
	started("/never")
	started("/behind-it")
	say("Completed 401 Unauthorized in 12ms")
	started("/alone-again")
	say("Completed 404 Not Found in 12ms")
	started("/a")
	started("/b")
	say("Completed 401 Unauthorized in 12ms")
	say("Completed 200 OK in 9000ms")
	started("/c")
	started("/d")
	say("Completed 401 Unauthorized in 12ms")
	say("Completed 200 OK in 12ms")
	r := check.Must(Open([]string{"-"}, Options{Stdin: strings.NewReader(log)}))(t)
	got := ""
	for req, err := range r.Requests {
		check.OK(t, err)
		got += fmt.Sprint(req.URI, " ", req.Status, " ")
	}
	want := "/alone 200 /never 0 /behind-it 0 /alone-again 404 /a 0 /b 0 /c 0 /d 0 "
	check.That(t, got == want, "got  %s\nwant %s", got, want)
	if doubts := strings.Join(r.Stats().Doubts(), "\n"); !strings.Contains(doubts, "4 requests have no status and no duration, because Rails") || !strings.Contains(doubts, "config.log_tags = [:request_id]") {
		t.Errorf("got the doubts %q, want those and the remedy", doubts)
	}
}

// TestTheClientIsTheOneThatAProxyNames, if the log's first addresses are proxies.
func TestTheClientIsTheOneThatAProxyNames(t *testing.T) {
	const line = `%s - - [02/Nov/2026:08:00:00 +0000] "GET / HTTP/1.1" 200 5 "-" "x" "%s" up=192.0.2.77` + "\n"
	log := func(peer, named string, every int) (text string) {
		for n := range 100 {
			who := "-"
			if n%every == 0 {
				who = fmt.Sprintf(named, n%40)
			}
			text += fmt.Sprintf(line, fmt.Sprintf(peer, n%3), who)
		}
		return text
	}
	for name, c := range map[string]struct {
		client, log string
		want        int
	}{
		"private proxies":           {"", log("10.0.0.%d", "192.0.2.%d", 1), 40},
		"public proxies":            {"", log("198.51.100.%d", "192.0.2.%d", 1), 40},
		"a few name another":        {"", log("198.51.100.%d", "192.0.2.%d", 3), 3},
		"none is named":             {"", log("10.0.0.%d", "-", 1), 3},
		"private ones":              {"", log("198.51.100.%d", "10.1.1.%d", 1), 3},
		"the first, by flag":        {"remote_addr", log("10.0.0.%d", "192.0.2.%d", 1), 3},
		"another, by its number":    {"1", log("10.0.0.%d", "192.0.2.%d", 1), 40},
		"another, by its name":      {"up", log("10.0.0.%d", "192.0.2.%d", 1), 1},
		"another, in JSON":          {"headers.X-Real-Ip.0", strings.Repeat(`{"ts":1793600000.5,"method":"GET","uri":"/","remote_addr":"10.0.0.1","headers":{"X-Real-Ip":["192.0.2.1"]}}`+"\n", 3), 1},
		"another, in JSON, by name": {"ip.src", strings.Repeat(`{"ts":1793600000.5,"method":"GET","uri":"/","remote_addr":"10.0.0.1","ip.src":"192.0.2.1"}`+"\n", 3), 1},
	} {
		for _, from := range []string{written(t, "access.log", c.log), "-"} {
			got, stats, err := readAll(t, Options{Client: c.client, Stdin: strings.NewReader(c.log)}, from)
			clients := make(map[string]bool)
			for _, r := range got {
				clients[r.client] = true
			}
			if err != nil || len(clients) != c.want || (stats.Behind > 0) != (c.want == 40 && c.client == "") || (len(stats.Doubts()) > 0) != (stats.Behind > 0) {
				t.Errorf("%s: got %v, %+v, %v, want %d clients", name, clients, stats, err, c.want)
			}
		}
	}
}

// TestFieldsAreReadAsTheServerSpellsThem.
func TestFieldsAreReadAsTheServerSpellsThem(t *testing.T) {
	const want = `08:00:00 250ms 192.0.2.7 example.com GET /a?b 404 5 a "b"`
	for _, c := range []struct{ fields, options, line string }{
		{`%v:%p %h %l %u %t \"%r\" %>s %O \"%{Referer}i\" \"%{User-Agent}i\" %D`, "", `example.com:443 192.0.2.7 - - [02/Nov/2026:08:00:00 +0000] "GET /a?b HTTP/1.1" 404 5 "-" "a \"b\"" 250000`},
		{`%{c}a|%{Host}i|%{msec}t|%m|%U|%q|%!200s|%B|%{User-agent}i|%{ms}T`, "", `192.0.2.7|example.com|1793606400000|GET|/a|?b|404|5|a "b"|250`},
		{`{"ip":"$remote_addr","at":"$time_iso8601","uri":"$request_uri","m":"$request_method","st":"$status","n":$body_bytes_sent,"ua":"$http_user_agent","vh":"$host","took":$request_time}`, "", `{"ip":"192.0.2.7","at":"2026-11-02T08:00:00.25+00:00","uri":"/a?b","m":"GET","st":"404","n":5,"ua":"a \"b\"","vh":"example.com","took":0.250}`},
		{`$msec	$host	$http_x_forwarded_for	$request	$status	$bytes_sent	${http_user_agent}	$request_time`, "", "1793606400.250\texample.com\t192.0.2.7, 10.0.0.1\tGET /a?b HTTP/1.1\t404\t5\ta \"b\"\t0.250"},
		{`{"ip":"$proxy_protocol_addr","who":"$remote_user","at":"$time_iso8601","uri":"$request_uri","m":"$request_method","st":$status,"n":$body_bytes_sent,"ua":"$http_user_agent","vh":"$host","took":"$request_time"}`, "proxy_protocol_addr", `{"ip":"192.0.2.7","who":"x [y","at":"2026-11-02T08:00:00.25+00:00","uri":"/a?b","m":"GET","st":404,"n":5,"ua":"a \"b\"","vh":"example.com","took":"0.250"}`},
		{`$remote_addr - $remote_user [$time_local] $host "$request" $status $body_bytes_sent "$http_user_agent" $upstream_response_time`, "", `192.0.2.7 - x [y] [z [02/Nov/2026:08:00:00.25 +0000] example.com "GET /a?b HTTP/1.1" 404 5 "a \"b\"" 0.250`},
	} {
		got, err := readAs(t, Options{Fields: c.fields, Client: c.options, TimeField: map[bool]string{true: "upstream_response_time"}[strings.Contains(c.fields, "upstream")]}, c.line)
		check.That(t, err == nil && got == want, "%s: got  %s, %v\nwant %s", c.fields, got, err, want)
	}
	for fields, want := range map[string]string{"": "", "$remote_addr$status": "nothing is between", "$remote_addr $request": "has no time", "%h %t": "has no request", "%t %U": "has no request"} {
		_, err := Open([]string{"-"}, Options{Fields: fields, Stdin: strings.NewReader("")})
		if (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", fields, err, want)
		}
	}
	_, err := first(t, Options{Fields: "%h %t %r"}, "nonsense")
	check.That(t, err != nil && strings.Contains(err.Error(), "does not have the fields that were named"), "got %v, want that the line does not fit", err)
}

// TestWhatIsNoAccessLogIsNamed, with what to do.
func TestWhatIsNoAccessLogIsNamed(t *testing.T) {
	for line, want := range map[string]string{
		`127.0.0.1 -  02/Nov/2026:08:00:00 +0000 "GET /index.php" 200`:                               "PHP-FPM, which knows no visitors: give that of the web server",
		`[Mon Nov 02 08:00:00.123456 2026] [core:error] [pid 35708:tid 4328] [client 192.0.2.7:1] x`: "an error log: give the access log",
		`2026/11/02 08:00:00 [error] 123#0: *1 open() "/x" failed, request: "GET /x HTTP/1.1"`:       "an error log: give the access log",
		`[2026-11-02 08:00:00] production.ERROR: boom`:                                               "an error log: give the access log",
		"2026/11/02 08:00:00.123\tINFO\thttp.log.access\thandled request\t{}":                        "log as JSON",
		"2026/11/02 08:00:00.123\t\x1b[31mERROR\x1b[0m\thttp.log.access\thandled request\t{}":        "log as JSON",
		`[`: "jq -c .[]",
		`{`: "jq -c .",
		`192.0.2.7 - - [02/Nope/2026:08:00:00 +0000] "GET / HTTP/1.1" 200 1`: `unknown time 02/Nope/2026:08:00:00 +0000`,
	} {
		_, err := first(t, Options{}, line)
		check.That(t, err != nil && strings.Contains(err.Error(), want), "%s: got %v, want %s", line, err, want)
	}
}

// TestDurationsOfAWrongUnitAreDoubted.
func TestDurationsOfAWrongUnitAreDoubted(t *testing.T) {
	for took, doubted := range map[time.Duration]bool{100 * time.Millisecond: false, 40 * time.Second: true} {
		text := ""
		for i := range 100 {
			text += caddyLine(noon.Add(time.Duration(i)*time.Second), took, "192.0.2.1", "/") + "\n"
		}
		_, stats, err := readAll(t, Options{}, written(t, "access.log", text))
		check.That(t, err == nil && (len(stats.Doubts()) > 0) == doubted, "%v: got %v and %v", took, stats.Doubts(), err)
	}
}

// TestTheFieldsThatAnErrorNamesReadTheLog.
func TestTheFieldsThatAnErrorNamesReadTheLog(t *testing.T) {
	for name, c := range map[string]struct{ line, want string }{
		"a log of Amazon's load balancer": {`https 2026-11-02T08:00:00.5Z app/lb/50dc 192.0.2.7:2817 10.0.0.1:80 0.000 0.250 0.000 404 404 34 5 "GET https://example.com:443/a?b HTTP/1.1" "curl/8" ECDHE TLSv1.2 "x"`, `08:00:00.25 250ms 192.0.2.7 example.com GET /a?b 404 5 curl/8`},
		"a log of Envoy":                  {`[2026-11-02T08:00:00.310Z] "GET /a?b HTTP/2" 404 - 154 5 226 100 "192.0.2.7" "curl/8" "cc21" "example.com" "10.0.2.1:80"`, `08:00:00.31 226ms 192.0.2.7 example.com GET /a?b 404 5 curl/8`},
	} {
		_, err := first(t, Options{}, c.line)
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v", name, err)
			continue
		}
		_, fields, _ := strings.Cut(err.Error(), "--fields '")
		fields, _, _ = strings.Cut(fields, "'")
		got, err := readAs(t, Options{Fields: fields}, c.line)
		check.That(t, err == nil && got == c.want, "%s: got  %s, %v with --fields '%s'\nwant %s", name, got, err, fields, c.want)
	}
	r, err := first(t, Options{Fields: `$time_iso8601 $elb $remote_addr $target $wait $request_time $reply $status $of_target $received $body_bytes_sent "$request" "$http_user_agent"`}, `2026-11-02T08:00:00.5Z lb 192.0.2.7:2817 10.0.0.1:80 0.000 0.250 0.000 404 404 34 5 "GET http://example.com:80/a?b HTTP/1.1" "curl/8" - -`)
	check.That(t, err == nil && r.ClientText == "192.0.2.7", "a classic load balancer: got %v, %v", r, err)
}
