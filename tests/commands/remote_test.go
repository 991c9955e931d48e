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
	"fmt"
	"math/big"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

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
	if _, journal := c.AskAdmin("GET", "/throttle/journal", ""); !strings.Contains(journal, `"via":"remote admin","by":"night shift","action":"ban"`) {
		t.Errorf("got the journal %s, want the name of the certificate", journal)
	}
}
