package cli

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/text"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/usage"
)

// A remote is how a command reaches Caddy's remote admin endpoint.
type remote struct{ cert, key, ca string }

// do makes a request with the client certificate. Its errors are those of the admin
// endpoint, as a person can read them.
func (r *remote) do(address, method, path string, body io.Reader) (*http.Response, error) {
	if r.cert == "" || r.key == "" {
		return nil, usage.Errorf("a remote admin endpoint asks for a client certificate: want --cert and --key")
	}
	cert, err := tls.LoadX509KeyPair(r.cert, r.key)
	if err != nil {
		return nil, fmt.Errorf("reading --cert and --key: %w", err)
	}
	config := &tls.Config{Certificates: []tls.Certificate{cert}}
	if r.ca != "" {
		pem, err := os.ReadFile(r.ca)
		if err != nil {
			return nil, fmt.Errorf("reading --ca: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("reading --ca: %s has no certificate in PEM", r.ca)
		}
	}
	req, err := http.NewRequest(method, strings.TrimSuffix(address, "/")+path, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	client := http.Client{Transport: &http.Transport{TLSClientConfig: config}}
	resp, err := client.Do(req)
	if err != nil {
		return nil, errors.New(text.Printable(err.Error(), 2000))
	}
	if resp.StatusCode >= 400 {
		said, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		_ = resp.Body.Close()
		return nil, plainly(fmt.Errorf("status %d: %s", resp.StatusCode, said), address)
	}
	return resp, nil
}
