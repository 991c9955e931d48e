package commands

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/chromium"
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
	passes("192.0.2.16")
	check.That(t, !passes("192.0.2.16"), "an address that is not on the list is exempt")
}

// watched has a page note what it says of its age.
const watched = `
	window.ages = [];
	new MutationObserver(() => ages.push(document.querySelector("#fresh").textContent)).observe(document.querySelector("#fresh"), {childList: true});
`

// TestTheInspectorIsLiveOnlyWhileCaddyAnswers stops a Caddy that somebody looks at, and ends it.
func TestTheInspectorIsLiveOnlyWhileCaddyAnswers(t *testing.T) {
	t.Parallel()
	s := startInspected(t, "")
	sendBusy(s)
	b := inspect(s, chromium.StartBrowser(t), s.inspector, "light", chromium.Desktop, "pages")
	b.When("a live page", `document.querySelector("#fresh").textContent === "live"`)
	b.Run(watched)
	check.OK(t, s.Cmd.Process.Signal(syscall.SIGSTOP))
	// A busy browser may still show an answer that was sent before Caddy stopped.
	b.When("that it is old", `parseInt(document.querySelector("#fresh").textContent) >= 10`)
	b.Run("ages.length = 0")
	b.When("its age after some time", `parseInt(document.querySelector("#fresh").textContent) >= 18`)
	got := chromium.Eval[[]string](b, "ages")
	check.That(t, len(got) >= 5 && !chromium.Eval[bool](b, `ages.includes("live")`), "got %q of a Caddy that hangs, want its age alone", got)
	b.When("a notice", `document.querySelector("#lost").checkVisibility() && document.querySelector("#lost").textContent.startsWith("Caddy does not answer.")`)
	check.OK(t, s.Cmd.Process.Signal(syscall.SIGCONT))
	b.When("a live page again", `document.querySelector("#fresh").textContent === "live" && document.querySelector("#lost").hidden`)
	check.OK(t, s.ShutDown())
	b.When("a notice", `document.querySelector("#lost").checkVisibility()`) // by then no answer is on its way
	b.Run("ages.length = 0")
	b.When("some of its ages", "ages.length >= 5")
	if got := chromium.Eval[[]string](b, "ages"); chromium.Eval[bool](b, `ages.includes("live")`) {
		t.Errorf("got %q of a Caddy that is gone, want its age alone", got)
	}
}

// TestTheJournalNamesTheClientCertificate of Caddy's remote admin endpoint.
func TestTheJournalNamesTheClientCertificate(t *testing.T) {
	t.Parallel()
	key := check.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "night shift"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der := check.Must(x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key))(t)
	c := system.StartCaddy(t, system.Config{Sites: fmt.Sprintf("http://:%d {\n\tthrottle pages 5 5/s\n}", servertest.FreePort(t))})
	_, running := c.AskAdmin("GET", "/config/", "")
	var whole map[string]any
	check.OK(t, json.Unmarshal([]byte(running), &whole))
	port := servertest.FreePort(t)
	admin := whole["admin"].(map[string]any)
	admin["identity"] = map[string]any{"identifiers": []string{"localhost"}, "issuers": []any{map[string]any{"module": "internal"}}}
	admin["remote"] = map[string]any{"listen": fmt.Sprintf("127.0.0.1:%d", port), "access_control": []any{map[string]any{
		"public_keys": []string{base64.StdEncoding.EncodeToString(der)},
		"permissions": []any{map[string]any{"paths": []string{"/throttle"}, "methods": []string{"GET", "POST"}}},
	}}}
	body := check.Must(json.Marshal(whole))(t)
	resp := check.Must(http.Post("http://"+c.Admin+"/load", "application/json", strings.NewReader(string(body))))(t)
	resp.Body.Close()
	_, pki := c.AskAdmin("GET", "/pki/ca/local", "")
	var ca struct {
		Root string `json:"root_certificate"`
	}
	check.OK(t, json.Unmarshal([]byte(pki), &ca))
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(ca.Root))
	remote := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{
		RootCAs: roots, Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
	}}}
	system.Eventually(t, "a ban by the remote endpoint", func() bool {
		resp, err := remote.Post(fmt.Sprintf("https://localhost:%d/throttle/ban", port), "application/json", strings.NewReader(`{"network": "192.0.2.0/24", "for": "1h"}`))
		if err != nil {
			return false // it has no certificate yet
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	_, journal := c.AskAdmin("GET", "/throttle/journal", "")
	check.That(t, strings.Contains(journal, `"via":"remote admin","by":"night shift","action":"ban"`), "got the journal %s, want the name of the certificate", journal)
}
