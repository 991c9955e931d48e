package tests

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// eachNightSite has a zone of each kind that commands ask about: one that overflows, one
// that trusts devices, and one in shadow.
func eachNightSite(port int) string {
	return fmt.Sprintf(`
http://:%d {
	throttle /login* {
		zone login {
			match method POST
			key field log missing share plain
			limit 10 10/h
			refund cookie session_*
			trust_devices session_*
		}
	}
	throttle /hidden {
		zone hidden {
			limit 1 1/h
			shadow
		}
	}
	throttle /page {
		zone pages {
			limit 3 3/h
			block 1h
		}
	}
	respond ok
}`, port)
}

// TestEachCommandWithEachStore runs every command that speaks to a running Caddy, for
// people and for scripts.
func TestEachCommandWithEachStore(t *testing.T) {
	t.Parallel()
	eachKindOfStore(t, func(t *testing.T, options string) {
		port := freePort(t)
		c := startCaddy(t, config{throttle: options, sites: eachNightSite(port)})
		url := fmt.Sprintf("http://127.0.0.1:%d/", port)
		fillUp(t, url+"page")
		wantStatus(t, url+"hidden", 200)
		wantStatus(t, url+"hidden", 200)
		known := make(map[string]bool)
		for _, test := range []struct {
			args string
			want []string // each in the output
		}{
			{"status", []string{"pages ", "enforcing", "hidden", "shadow", "SHADOW/S", "Shadow counts as if all zones of the same throttle were enforced.", "Nothing was changed at run time."}},
			{"top", []string{"pages: 4 requests in the last", "1 refused", "hidden (shadow): 2 requests", "127.0.0.1", "No requests in the last minute: login"}},
			{"top pages --by ip", []string{"pages: 4 requests", "127.0.0.1\n"}},
			{"top pages --by /24", []string{"127.0.0.0/24\n"}},
			{"top pages --by /16", []string{"127.0.0.0/16\n"}},
			{"why 127.0.0.1", []string{"It is refused now.", "refused: blocked, ", "pages ", "hidden (shadow)", "refused: capacity, "}},
			{"ban 10.1.2.3 --for 1h --note matrix", []string{"is banned until"}},
			{"limit pages x0.5 --for 1h", []string{"pages: x0.5 holds until"}},
			{"limit pages x0.6 --replace --for 1h --by carol", []string{"pages: x0.6 holds until"}},
			{"limit pages x0.5 --replace --for 1h", []string{"pages: x0.5 holds until"}},
			{"limit pages 127.0.0.9 unlimited --for 1h", []string{"unlimited holds until"}},
			{"shadow pages --for 1h", []string{"pages is in shadow until"}},
			{"why 127.0.0.1", []string{"The zone pages is in shadow by caddy throttle shadow: it refuses nothing. Left: "}},
			{"bans", []string{"10.1.2.3 ", "matrix", "x0.5", "pages/127.0.0.9", "shadow"}},
			{"status", []string{"shadow, x0.5 for ", "x0.5", "10.1.2.3 "}},
			{"unshadow pages", []string{"Ended"}},
			{"shadow --all --for 1h", []string{"Everything is in shadow until"}},
			{"why 127.0.0.1", []string{"Everything is in shadow by caddy throttle shadow --all: nothing is refused, and bans do not hold. Left: "}},
			{"unshadow --all", []string{"Ended"}},
			{"unlimit pages", []string{"Ended"}},
			{"unlimit pages 127.0.0.9", []string{"Ended"}},
			{"unban 10.1.2.3", []string{"Ended"}},
			{"release 127.0.0.1", []string{"emptied pages/127.0.0.1\n", "emptied hidden/127.0.0.1 (shadow)\n"}},
			{"release 127.0.0.1", []string{"No bucket of 127.0.0.1 was in use."}},
			{"why 127.0.0.1", []string{"Nothing refuses a request of cost 1 now.", "No bucket of this client is in use."}},
			{"journal", []string{"ban ", "10.1.2.3/32", "matrix", "limit x0.6", "unshadow", "release", "hidden/127.0.0.1", "carol "}},
		} {
			args := strings.Fields(test.args)
			known[args[0]] = true
			out := c.throttle(args...)
			for _, want := range test.want {
				if !strings.Contains(out, want) {
					t.Errorf("%s: got\n%s\nwant it to hold %q", test.args, out, want)
				}
			}
		}
		wantStatus(t, url+"page", 200)
		for _, args := range []string{
			"status", "top", "why 127.0.0.1",
			"ban 10.1.2.3 --for 1h", "bans", "journal", "unban 10.1.2.3", "limit pages x2 --for 1h", "unlimit pages",
			"shadow --all --for 1h", "unshadow --all", "release 127.0.0.1",
		} {
			if out := c.throttle(append(strings.Fields(args), "--json")...); !json.Valid([]byte(out)) {
				t.Errorf("%s --json: got\n%s\nwant JSON", args, out)
			}
		}
		help, err := caddyCommand(t, "throttle", "--help").CombinedOutput()
		if err != nil {
			t.Fatal(err)
		}
		_, list, _ := strings.Cut(string(help), "Available Commands:\n")
		list, _, _ = strings.Cut(list, "\n\n")
		for line := range strings.Lines(list) {
			name := strings.Fields(line)[0]
			if offline := []string{"recommend", "replay", "summary"}; !slices.Contains(offline, name) && !known[name] {
				t.Errorf("got the command %s, which is not tried", name)
			}
		}
	})
}

// TestEachEndpointWithEachStore asks every path of the admin API.
func TestEachEndpointWithEachStore(t *testing.T) {
	t.Parallel()
	eachKindOfStore(t, func(t *testing.T, options string) {
		port := freePort(t)
		c := startCaddy(t, config{throttle: options, sites: eachNightSite(port)})
		url := fmt.Sprintf("http://127.0.0.1:%d/", port)
		fillUp(t, url+"page")
		tried := make(map[string]bool)
		for _, test := range []struct {
			method, path, body string
			status             int
			want               []string // each in the answer
		}{
			{"GET", "zones", "", 200, []string{`"zone":"pages"`, `"refused":1`, `"store":{"name":`, `"warnings":[`, `"total":{`}},
			{"GET", "overrides", "", 200, []string{`[]`}},
			{"GET", "journal", "", 200, []string{"["}},
			{"GET", "rates", "", 200, []string{`"hour":{`}},
			{"POST", "top", `{"zone": "pages"}`, 200, []string{`"busiest":[{"key":"127.0.0.1","requests":4,"refused":1}]`, `"most_refused":[{`}},
			{"POST", "why", `{"client": "127.0.0.1"}`, 200, []string{`"key":"127.0.0.1"`, `"fraction":`, `"blocked":`, `"complete":true`}},
			{"POST", "buckets", `{"zone": "pages"}`, 200, []string{`"key":"127.0.0.1"`, `"empty_in":`, `"last_used":`, `"matched":1,"complete":true}`}},
			{"POST", "buckets", `{"zone": "pages", "sort": "key", "limit": 1}`, 200, []string{`"key":"127.0.0.1"`}},
			{"POST", "ban", `{"network": "10.0.0.0/8", "for": "1h", "note": "n"}`, 200, []string{`"network":"10.0.0.0/8"`, `"until":`}},
			{"POST", "unban", `{"network": "10.0.0.0/8"}`, 200, []string{`"ended":true`}},
			{"POST", "limit", `{"zone": "pages", "limit": "x2", "for": "1h"}`, 200, []string{`"until":`}},
			{"POST", "unlimit", `{"zone": "pages"}`, 200, []string{`"ended":true`}},
			{"POST", "shadow", `{"zone": "pages", "for": "1h"}`, 200, []string{`"until":`}},
			{"POST", "unshadow", `{"zone": "pages"}`, 200, []string{`"ended":true`}},
			{"POST", "release", `{"client": "127.0.0.1"}`, 200, []string{`"freed":["pages/127.0.0.1"]`}},
			{"POST", "release", `{"client": "127.0.0.1"}`, 200, []string{`"freed":[]`}},

			{"GET", "release", "", 405, nil},
			{"GET", "ban", "", 405, nil},
			{"GET", "shadow", "", 405, nil},
			{"GET", "", "", 404, nil},
			{"GET", "zones/", "", 404, nil},
			{"GET", "zones/pages", "", 404, nil},
			{"GET", "%7aones", "", 200, nil}, // the same path, and it changes nothing
			{"POST", "zones/../release", `{"client": "x"}`, 307, nil},
			{"POST", "release%2f", `{"client": "x"}`, 404, nil},
			{"POST", "why", `{"client": ""}`, 400, []string{"no client"}},
			{"POST", "why", `{"client": "x", "zone": "../login"}`, 404, []string{"unknown zone"}},
			{"POST", "buckets", `{"zone": ""}`, 404, []string{"unknown zone"}},
			{"POST", "buckets", `{"zone": "pages%00"}`, 404, []string{"unknown zone"}},
			{"POST", "limit", `{"zone": "pages/127.0.0.1", "limit": "x2", "for": "1h"}`, 404, []string{"unknown zone"}},
		} {
			what := fmt.Sprint(test.method, " ", test.path, " ", test.body)
			tried[test.path] = tried[test.path] || test.status == http.StatusOK
			req, err := http.NewRequest(test.method, "http://"+c.admin+"/throttle/"+test.path, strings.NewReader(test.body))
			if err != nil {
				t.Fatal(err)
			}
			if test.body != "" {
				req.Header.Set("Content-Type", "application/json")
			}
			client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			answer, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil || resp.StatusCode != test.status {
				t.Errorf("%s: got %d, error %v and %s, want %d", what, resp.StatusCode, err, answer, test.status)
			}
			for _, want := range test.want {
				if !strings.Contains(string(answer), want) {
					t.Errorf("%s: got\n%s\nwant it to hold %q", what, answer, want)
				}
			}
		}
		wantStatus(t, url+"page", 200)
		text, err := os.ReadFile("../docs/admin-api.md")
		if err != nil {
			t.Fatal(err)
		}
		documented := regexp.MustCompile("`/throttle/(\\w+)`").FindAllStringSubmatch(string(text), -1)
		for _, path := range documented {
			if !tried[path[1]] {
				t.Errorf("got the path %s documented, which is not tried", path[1])
			}
		}
		if len(documented) < 14 {
			t.Errorf("got %d paths documented, want all", len(documented))
		}
	})
}
