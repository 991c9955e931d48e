package stores

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

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

// TestAReleaseOnOneNodeHoldsOnAll with the same store, soon.
func TestAReleaseOnOneNodeHoldsOnAll(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, s *storeServer) {
		nodes := startNodes(t, s.through(s.address)+"\nstore_timeout 30s\non_store_error deny", nightSite, 0, 0)
		fillUp(t, nodes[0].url+"login")
		wantStatus(t, nodes[1].url+"login", 429)
		nodes[0].Throttle("release", "127.0.0.1")
		wantStatus(t, nodes[0].url+"login", 200)
		deadline := time.Now().Add(system.StartTime)
		for {
			resp := check.Must(http.Get(nodes[1].url + "login"))(t)
			resp.Body.Close()
			if resp.StatusCode == 200 {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("the other node: got %d %v after the release, want 200", resp.StatusCode, system.StartTime)
			}
		}
	})
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
