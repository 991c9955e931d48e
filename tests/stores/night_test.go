package stores

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
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
	req := check.Must(http.NewRequest("GET", url, nil))(t)
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp := system.Surely(t, req)
	resp.Body.Close()
	check.Need(t, resp.StatusCode, want, "%s", url)
}

func fillUp(t *testing.T, url string, headers ...string) {
	t.Helper()
	for range 3 {
		wantStatus(t, url, 200, headers...)
	}
	wantStatus(t, url, 429, headers...)
}

// TestAReleaseWorksWithoutTheRightToScan, for all buckets that it can name.
func TestAReleaseWorksWithoutTheRightToScan(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t, "--user", "app", "on", ">s3cret", "~throttle:*", "+eval", "+evalsha", "+get", "+set", "+del", "+time", "+info")
	port := servertest.FreePort(t)
	c := system.StartCaddy(t, system.Config{
		Throttle: "store redis redis://app:s3cret@" + server.Addr + "\nstore_timeout 30s\non_store_error deny",
		Sites:    nightSite(port),
	})
	url := fmt.Sprintf("http://127.0.0.1:%d/", port)
	fillUp(t, url+"page")
	fillUp(t, url+"login")
	out, err := c.TryThrottle("release", "127.0.0.1")
	check.That(t, err != nil, "got no error, want one that says what is left")
	for _, want := range []string{"emptied login/127.0.0.1\n", "the release is not complete", "+scan"} {
		check.That(t, strings.Contains(out, want), "got\n%s\nwant it to hold %q", out, want)
	}
	wantStatus(t, url+"login", 200)
}

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
		port := servertest.FreePort(t)
		c := system.StartCaddy(t, system.Config{Throttle: options, Sites: eachNightSite(port)})
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
			{"top", []string{"pages (enforcing): 4 requests in the last", "1 refused", "hidden (shadow): 2 requests", "127.0.0.1", "login (enforcing): 0 requests"}},
			{"top pages --by ip", []string{"pages (enforcing): 4 requests", "127.0.0.1\n"}},
			{"top pages --by /24", []string{"127.0.0.0/24\n"}},
			{"top pages --by /16", []string{"127.0.0.0/16\n"}},
			{"why 127.0.0.1", []string{"It is refused now.", "refused: blocked, ", "pages ", "hidden (shadow)", "refused: capacity, "}},
			{"ban 10.1.2.3 --for 1h --note matrix", []string{"ban of 10.1.2.3/32 holds until"}},
			{"limit pages x0.5 --for 1h", []string{"limit x0.5 of pages holds until"}},
			{"limit pages x0.6 --replace --for 1h --by carol", []string{"limit x0.6 of pages holds until"}},
			{"limit pages x0.5 --replace --for 1h", []string{"limit x0.5 of pages holds until"}},
			{"limit pages 127.0.0.9 unlimited --for 1h", []string{"limit unlimited of pages/127.0.0.9 holds until"}},
			{"shadow pages --for 1h", []string{"shadow of pages holds until"}},
			{"why 127.0.0.1", []string{"The zone pages is in shadow by caddy throttle shadow: it refuses nothing. Left: "}},
			{"bans", []string{"10.1.2.3/32 ", "matrix", "x0.5", "pages/127.0.0.9", "shadow"}},
			{"status", []string{"shadow, x0.5 for ", "x0.5", "10.1.2.3/32 "}},
			{"unshadow pages", []string{"Ended"}},
			{"shadow --all --for 1h", []string{"shadow of all zones and bans holds until"}},
			{"why 127.0.0.1", []string{"Everything is in shadow by caddy throttle shadow --all: nothing is refused, and bans do not hold. Left: "}},
			{"unshadow --all", []string{"Ended"}},
			{"unlimit pages", []string{"Ended"}},
			{"unlimit pages 127.0.0.9", []string{"Ended"}},
			{"unban 10.1.2.3", []string{"Ended"}},
			{"release 127.0.0.1", []string{"emptied pages/127.0.0.1\n", "emptied hidden/127.0.0.1 (shadow)\n"}},
			{"release 127.0.0.1", []string{"No bucket of 127.0.0.1 was in use."}},
			{"why 127.0.0.1", []string{"No zone refuses a request of cost 1 now.", "No bucket of this client is in use."}},
			{"journal", []string{"ban ", "10.1.2.3/32", "matrix", "limit x0.6", "unshadow", "release", "hidden/127.0.0.1", "carol "}},
		} {
			args := strings.Fields(test.args)
			known[args[0]] = true
			out := c.Throttle(args...)
			for _, want := range test.want {
				check.That(t, strings.Contains(out, want), "%s: got\n%s\nwant it to hold %q", test.args, out, want)
			}
		}
		wantStatus(t, url+"page", 200)
		if options != "" {
			return
		}
		for _, args := range []string{ // which depend on no store
			"status", "top", "why 127.0.0.1",
			"ban 10.1.2.3 --for 1h", "bans", "journal", "unban 10.1.2.3", "limit pages x2 --for 1h", "unlimit pages",
			"shadow --all --for 1h", "unshadow --all", "release 127.0.0.1",
		} {
			out := c.Throttle(append(strings.Fields(args), "--json")...)
			check.That(t, json.Valid([]byte(out)), "%s --json: got\n%s\nwant JSON", args, out)
		}
		help := check.Must(system.CaddyCommand(t, "throttle", "--help").CombinedOutput())(t)
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
