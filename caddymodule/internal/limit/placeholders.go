package limit

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// parseTemplate splits a string with placeholders into its pieces. It refuses
// placeholders that cannot work in a key.
func parseTemplate(text string) (Template, error) {
	template := ParseTemplate(text)
	names := template.Placeholders()
	if len(names) == 0 {
		return nil, fmt.Errorf("no placeholder in %q: for a fixed text, want text %s", text, text)
	}
	for _, name := range names {
		if slices.Contains(clientPlaceholders, "{"+name+"}") {
			return nil, fmt.Errorf("placeholder {%s} within %q: give client_ip as a part of its own, which masks IPv6 addresses", name, text)
		}
		if err := checkPlaceholder(name); err != nil {
			return nil, fmt.Errorf("placeholder {%s}: %w", name, err)
		}
	}
	return template, nil
}

// checkPlaceholder refuses placeholders that never have a value, that differ for each
// request, or that are too expensive for every request. Caddy itself says which of
// its own it knows. Placeholders of other modules pass, as they cannot be known
// here.
func checkPlaceholder(name string) error {
	switch {
	case strings.HasPrefix(name, "http.request.body"):
		return errors.New("it would read the whole body of every request into memory")
	case name == "http.request.client_ip":
		return errors.New("no such placeholder in Caddy: want the key source client_ip")
	case name == "http.request.uuid", name == "http.request.remote", name == "http.request.remote.port",
		strings.HasPrefix(name, "http.request.duration"):
		return errors.New("it differs for every request or connection")
	case strings.HasPrefix(name, "http.throttle."):
		return errors.New("it is known only after the decision")
	case !strings.HasPrefix(name, "http.request."):
		return nil
	}
	repl := caddy.NewEmptyReplacer()
	ctx := context.WithValue(context.Background(), http.LocalAddrContextKey, &net.TCPAddr{})
	r := &http.Request{
		Method: http.MethodGet, Host: "localhost", RemoteAddr: "127.0.0.1:1", URL: &url.URL{Path: "/"}, Header: make(http.Header),
		TLS: &tls.ConnectionState{HandshakeComplete: true, PeerCertificates: []*x509.Certificate{{PublicKey: ed25519.PublicKey(make([]byte, ed25519.PublicKeySize))}}},
	}
	caddyhttp.PrepareRequest(r.WithContext(ctx), repl, nil, new(caddyhttp.Server))
	if _, known := repl.Get(name); !known {
		return errors.New("no such placeholder in Caddy, so it would always be empty")
	}
	return nil
}
