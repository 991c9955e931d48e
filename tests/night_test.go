package tests

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
)

// eachKindOfStore runs a test with buckets in memory, in Redis and in PostgreSQL. The
// argument is the options of the store.
func eachKindOfStore(t *testing.T, test func(t *testing.T, options string)) {
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		test(t, "")
	})
	eachStore(t, func(t *testing.T, s *storeServer) {
		store := s.through(s.address)
		if s.name == "postgres" {
			store += "?connect_timeout=5" // not half a second, which a starved machine may need
		}
		test(t, store+"\nstore_timeout 30s\non_store_error deny")
	})
}

// throttle runs a command that speaks to the admin endpoint, which must succeed.
func (c *caddy) throttle(args ...string) string {
	c.t.Helper()
	out, err := c.tryThrottle(args...)
	if err != nil {
		c.t.Fatalf("caddy throttle %q: got %v\n%s", args, err, out)
	}
	return out
}

// tryThrottle runs it again if a reload has closed its connection unread.
func (c *caddy) tryThrottle(args ...string) (string, error) {
	c.t.Helper()
	all := append(append([]string{"throttle"}, args...), "--address", c.admin)
	out, err := caddyCommand(c.t, all...).CombinedOutput()
	for range 3 {
		if err == nil || !strings.Contains(string(out), ": EOF") && !strings.Contains(string(out), "connection reset by peer") {
			break
		}
		out, err = caddyCommand(c.t, all...).CombinedOutput()
	}
	return string(out), err
}

// nightSite has a zone that blocks everywhere, one by address and path, and one by an
// account that is kept as a digest.
func nightSite(port int) string {
	return fmt.Sprintf(`
http://:%d {
	throttle /login {
		zone login {
			limit 3 3/h
			block 1h everywhere
		}
	}
	throttle /page {
		zone pages {
			key client_ip {path}
			limit 3 3/h
		}
	}
	throttle /api {
		zone api {
			key header X-Api-Key
			limit 3 3/h
		}
	}
	respond ok
}`, port)
}

// wantStatus sends a request with headers, and checks the status.
func wantStatus(t *testing.T, url string, want int, headers ...string) {
	t.Helper()
	req, err := http.NewRequest("GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp := surely(t, req)
	resp.Body.Close()
	if resp.StatusCode != want {
		t.Fatalf("%s: got %d, want %d", url, resp.StatusCode, want)
	}
}

func fillUp(t *testing.T, url string, headers ...string) {
	t.Helper()
	for range 3 {
		wantStatus(t, url, 200, headers...)
	}
	wantStatus(t, url, 429, headers...)
}

func TestTheNightWithEachStore(t *testing.T) {
	t.Parallel()
	eachKindOfStore(t, func(t *testing.T, options string) {
		port := freePort(t)
		c := startCaddy(t, config{throttle: options, sites: nightSite(port)})
		url := fmt.Sprintf("http://127.0.0.1:%d/", port)
		fillUp(t, url+"page")
		fillUp(t, url+"api", "X-Api-Key", "s3cret")
		fillUp(t, url+"login")
		wantStatus(t, url+"api", 429, "X-Api-Key", "another") // blocked everywhere

		out := c.throttle("why", "127.0.0.1")
		for _, want := range []string{"login", "127.0.0.1/%2Fpage", "limited"} {
			if !strings.Contains(out, want) {
				t.Errorf("why: got\n%s\nwant it to hold %q", out, want)
			}
		}
		var listed struct {
			Buckets []struct {
				Key      string
				Fraction float64
				Blocked  float64
			}
			Complete bool
		}
		if err := json.Unmarshal([]byte(c.throttle("buckets", "login", "--json")), &listed); err != nil {
			t.Fatal(err)
		}
		if len(listed.Buckets) != 1 || listed.Buckets[0].Key != "127.0.0.1" || listed.Buckets[0].Fraction < 0.9 ||
			listed.Buckets[0].Blocked < 60 || !listed.Complete {
			t.Errorf("buckets: got %+v, want the blocked one of 127.0.0.1", listed)
		}

		// Nobody is refused while the switch is on.
		c.throttle("ban", "127.0.0.0/8", "--note", "a test")
		c.throttle("shadow", "--all", "--for", "30m")
		for _, path := range []string{"page", "login"} {
			wantStatus(t, url+path, 200)
		}
		c.throttle("unshadow", "--all")
		wantStatus(t, url+"elsewhere", 200) // no directive is there
		wantStatus(t, url+"page", 429)
		c.throttle("unban", "127.0.0.0/8")

		out = c.throttle("release", "127.0.0.1")
		for _, want := range []string{"emptied login/127.0.0.1\n", "emptied pages/127.0.0.1/%2Fpage\n"} {
			if !strings.Contains(out, want) {
				t.Errorf("release: got\n%s\nwant it to hold %q", out, want)
			}
		}
		fillUp(t, url+"page")
		wantStatus(t, url+"api", 429, "X-Api-Key", "s3cret") // another client, by its key
		c.throttle("release", "s3cret")
		fillUp(t, url+"api", "X-Api-Key", "s3cret")
		if strings.Contains(c.output.String(), "s3cret") {
			t.Error("got a released API key in Caddy's log, want none")
		}

		c.throttle("limit", "login", "127.0.0.1", "unlimited", "--for", "1h")
		for range 10 {
			wantStatus(t, url+"login", 200)
		}
		c.reload(config{throttle: options, sites: strings.Replace(nightSite(port), "respond ok", "respond again", 1)})
		wantStatus(t, url+"login", 200)
		out = c.throttle("status")
		for _, want := range []string{"login", "enforcing", "limit unlimited", "login/127.0.0.1"} {
			if !strings.Contains(out, want) {
				t.Errorf("status: got\n%s\nwant it to hold %q", out, want)
			}
		}
	})
}

func TestASupportCodeSaysWhatWasRefused(t *testing.T) {
	t.Parallel()
	port := freePort(t)
	c := startCaddy(t, config{sites: nightSite(port)})
	url := fmt.Sprintf("http://127.0.0.1:%d/", port)
	fillUp(t, url+"page")
	a := newVisitorFrom(t, "h1", "127.0.0.1").get(t, url+"page", "Accept", "text/html")
	code := regexp.MustCompile(`[0-9A-Z]{4}-[0-9A-Z]{4}`).FindString(a.body)
	if a.status != 429 || code == "" {
		t.Fatalf("got %d with\n%s\nwant 429 with a code", a.status, a.body)
	}
	c.reload(config{sites: strings.Replace(nightSite(port), "respond ok", "respond again", 1)})
	for _, spelt := range []string{code, strings.ToLower(code), strings.Replace(code, "-", " ", 1)} {
		out := c.throttle("why", spelt)
		for _, want := range []string{"Refused ", code, "pages", "127.0.0.1/%2Fpage", "capacity", "Now:", "limited"} {
			if !strings.Contains(out, want) {
				t.Errorf("%q: got\n%s\nwant it to hold %q", spelt, out, want)
			}
		}
	}
	if out := c.throttle("why", "0000-0001"); !strings.Contains(out, "This Caddy remembers no refusal with this support code") {
		t.Errorf("an unknown code: got\n%s\nwant that it is unknown", out)
	}
}

// TestAReleaseOnOneNodeHoldsOnAll with the same store, soon.
func TestAReleaseOnOneNodeHoldsOnAll(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, s *storeServer) {
		nodes := startNodes(t, s.through(s.address)+"\nstore_timeout 30s\non_store_error deny", nightSite, 0, 0)
		fillUp(t, nodes[0].url+"login")
		wantStatus(t, nodes[1].url+"login", 429)
		nodes[0].throttle("release", "127.0.0.1")
		wantStatus(t, nodes[0].url+"login", 200)
		deadline := time.Now().Add(startTime)
		for {
			resp, err := http.Get(nodes[1].url + "login")
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode == 200 {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("the other node: got %d %v after the release, want 200", resp.StatusCode, startTime)
			}
		}
	})
}

func TestNightCommandsSayWhatIsWrong(t *testing.T) {
	t.Parallel()
	port := freePort(t)
	c := startCaddy(t, config{sites: nightSite(port)})
	for _, test := range []struct {
		args string
		want string
	}{
		{"release", "want caddy throttle release"},
		{"release x --zone logn", "did you mean login?"},
		{"ban 0.0.0.0/0 --for 1h", "too large"},
		{"ban 203.0.113.7 --for 1h --until 09:00", "want at most one of --for"},
		{"ban 203.0.113.7 --until noon", "want a time such as 09:00"},
		{"unban 203.0.113.7", "no such change"},
		{"limit login fast --for 1h", "invalid limit"},
		{"shadow --for 1h", "want a zone, or --all"},
		{"shadow login --all --for 1h", "want a zone, or --all"},
		{"buckets login --sort up", "want level, key or last"},
		{"top --by 10", "want ip"},
		{"revoke-devices", "no zone has trust_devices"},
	} {
		out, err := c.tryThrottle(strings.Fields(test.args)...)
		if err == nil || !strings.Contains(out, test.want) {
			t.Errorf("%s: got error %v and\n%s\nwant an error with %q", test.args, err, out, test.want)
		}
	}
	wantStatus(t, fmt.Sprintf("http://127.0.0.1:%d/login", port), 200)
}

// TestHostileKeysDoNotReachTheTerminal: keys of clients are in no output as they are.
func TestHostileKeysDoNotReachTheTerminal(t *testing.T) {
	t.Parallel()
	port := freePort(t)
	c := startCaddy(t, config{sites: fmt.Sprintf(`
http://:%d {
	throttle {
		zone agents {
			key {http.request.uri.query.q}
			limit 1 1/h
		}
	}
	respond ok
}`, port)})
	url := fmt.Sprintf("http://127.0.0.1:%d/?q=", port)
	for _, q := range []string{"%1b%5b2J", "%0d%0aEmptied", "%e2%80%aeevil", "%3Cscript%3E"} {
		wantStatus(t, url+q, 200)
	}
	for _, args := range [][]string{{"buckets", "agents"}, {"why", "\x1b[2J"}, {"buckets", "agents", "--json"}} {
		out := c.throttle(args...)
		if strings.ContainsAny(out, "\x1b\r\u202e") {
			t.Errorf("%q: got %q, want no control character", args, out)
		}
	}
}

// TestTheAdminAPIIsProtectedAsCaddysIs against other sites in a browser.
func TestTheAdminAPIIsProtectedAsCaddysIs(t *testing.T) {
	t.Parallel()
	port := freePort(t)
	c := startCaddy(t, config{sites: nightSite(port)})
	for _, test := range []struct {
		name, method, path, host, origin, kind string
	}{
		{"a foreign origin", "POST", "release", "", "http://evil.example", "application/json"},
		{"the null origin", "POST", "release", "", "null", "application/json"},
		{"a foreign host", "POST", "release", "evil.example", "", "application/json"},
		{"a form", "POST", "release", "", "", "application/x-www-form-urlencoded"},
		{"GET", "GET", "release", "", "", ""},
		{"HEAD", "HEAD", "shadow", "", "", ""},
		{"an escaped path", "POST", "%72elease%2f", "", "", "application/json"},
	} {
		req, err := http.NewRequest(test.method, "http://"+c.admin+"/throttle/"+test.path, strings.NewReader(`{"client": "127.0.0.1"}`))
		if err != nil {
			t.Fatal(err)
		}
		if test.host != "" {
			req.Host = test.host
		}
		for name, value := range map[string]string{"Origin": test.origin, "Content-Type": test.kind} {
			if value != "" {
				req.Header.Set(name, value)
			}
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode < 400 || resp.StatusCode >= 500 {
			t.Errorf("%s: got %d, want it refused", test.name, resp.StatusCode)
		}
	}
}

// TestAReleaseWorksWithoutTheRightToScan, for all buckets that it can name.
func TestAReleaseWorksWithoutTheRightToScan(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t, "--user", "app", "on", ">s3cret", "~throttle:*", "+eval", "+evalsha", "+get", "+set", "+del", "+time", "+info")
	port := freePort(t)
	c := startCaddy(t, config{
		throttle: "store redis redis://app:s3cret@" + server.Addr + "\nstore_timeout 30s\non_store_error deny",
		sites:    nightSite(port),
	})
	url := fmt.Sprintf("http://127.0.0.1:%d/", port)
	fillUp(t, url+"page")
	fillUp(t, url+"login")
	out := c.throttle("release", "127.0.0.1")
	for _, want := range []string{"emptied login/127.0.0.1\n", "did not reach the end", "+scan"} {
		if !strings.Contains(out, want) {
			t.Errorf("got\n%s\nwant it to hold %q", out, want)
		}
	}
	wantStatus(t, url+"login", 200)
	if out, err := c.tryThrottle("buckets", "login"); err == nil || !strings.Contains(out, "+scan") {
		t.Errorf("buckets: got error %v and\n%s\nwant an error that names the right", err, out)
	}
}
