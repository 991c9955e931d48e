package tests

import (
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// TestAListOfCrawlersIsFetchedOverHTTPSAndKeptOverARestart: an operator publishes the
// addresses of its crawler. Caddy fetches them when it starts. Then the operator is out
// of reach, and Caddy is restarted.
func TestAListOfCrawlersIsFetchedOverHTTPSAndKeptOverARestart(t *testing.T) {
	t.Parallel()
	var gone atomic.Bool
	operator := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if gone.Load() {
			http.Error(w, "gone", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprint(w, `{"creationTime":"2026-11-01","prefixes":[{"ipv4Prefix":"192.0.2.0/28"},{"ipv6Prefix":"2001:db8:1::/64"}]}`)
	}))
	defer operator.Close()
	roots := writeFile(t, "roots.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: operator.Certificate().Raw})))
	home, port := t.TempDir(), freePort(t)
	url := fmt.Sprintf("http://127.0.0.1:%d/", port)
	start := func() *caddy {
		admin := fmt.Sprintf("127.0.0.1:%d", freePort(t))
		file := writeFile(t, "Caddyfile", config{
			servers:  "trusted_proxies static 127.0.0.0/8",
			throttle: "exempt verified_crawler " + operator.URL + "/bots.json",
			sites:    fmt.Sprintf("http://:%d {\n throttle {\n zone pages {\n limit 1 1/d\n }\n }\n respond ok\n}", port),
		}.caddyfile(admin))
		return startCaddyIn(t, admin, filepath.Dir(file), file, "SSL_CERT_FILE="+roots, "XDG_DATA_HOME="+home)
	}
	v := newVisitor(t, "h1")
	passes := func(from string) bool { return v.get(t, url, "X-Forwarded-For", from).status == http.StatusOK }

	caddy := start()
	for _, from := range []string{"192.0.2.1", "2001:db8:1::77"} {
		passes(from) // its bucket is full until the list is known
		eventually(t, "the list to be fetched", func() bool { return passes(from) })
	}
	if passes("192.0.2.16"); passes("192.0.2.16") {
		t.Error("an address that is not on the list is exempt")
	}
	eventually(t, "a copy in storage, which is made when the list is in use", func() bool {
		copies, _ := filepath.Glob(filepath.Join(home, "caddy", "throttle", "crawlers", "*.json"))
		return len(copies) == 1
	})
	if err := caddy.shutDown(); err != nil {
		t.Fatal(err)
	}

	gone.Store(true)
	caddy = start()
	for range 3 {
		if !passes("192.0.2.1") {
			t.Error("after a restart, the list is not known at once")
		}
	}
	if log := caddy.output.String(); strings.Contains(log, "list of crawlers") {
		t.Errorf("a list of today was fetched again: %s", log)
	}
}
