package commands

import (
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

// TestAListOfCrawlersIsFetchedOverHTTPS when Caddy starts: an operator publishes the addresses of its
// crawler.
func TestAListOfCrawlersIsFetchedOverHTTPS(t *testing.T) {
	t.Parallel()
	operator := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"creationTime":"2026-11-01","prefixes":[{"ipv4Prefix":"192.0.2.0/28"},{"ipv6Prefix":"2001:db8:1::/64"}]}`)
	}))
	defer operator.Close()
	roots := system.WriteFile(t, "roots.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: operator.Certificate().Raw})))
	port := servertest.FreePort(t)
	url := fmt.Sprintf("http://127.0.0.1:%d/", port)
	admin := fmt.Sprintf("127.0.0.1:%d", servertest.FreePort(t))
	file := system.WriteFile(t, "Caddyfile", system.Config{
		Servers:  "trusted_proxies static 127.0.0.0/8",
		Throttle: "exempt verified_crawler " + operator.URL + "/bots.json",
		Sites:    fmt.Sprintf("http://:%d {\n throttle {\n zone pages {\n limit 1 1/d\n }\n }\n respond ok\n}", port),
	}.Caddyfile(admin))
	system.StartCaddyIn(t, admin, filepath.Dir(file), file, "SSL_CERT_FILE="+roots, "XDG_DATA_HOME="+t.TempDir())
	v := system.NewVisitor(t, "h1")
	passes := func(from string) bool { return v.Get(t, url, "X-Forwarded-For", from).Status == http.StatusOK }

	for _, from := range []string{"192.0.2.1", "2001:db8:1::77"} {
		passes(from) // its bucket is full until the list is known
		system.Eventually(t, "the list to be fetched", func() bool { return passes(from) })
	}
	if passes("192.0.2.16"); passes("192.0.2.16") {
		t.Error("an address that is not on the list is exempt")
	}
}
