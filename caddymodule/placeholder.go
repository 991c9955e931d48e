package caddymodule

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
	"regexp"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

var placeholder = regexp.MustCompile(`\{[^{}\s]+\}`)

// parseTemplate splits a string with placeholders into its pieces and refuses
// those that could never work.
func parseTemplate(text string) ([]piece, error) {
	template := split(text, placeholder)
	found := false
	for _, piece := range template {
		if piece.placeholder == "" {
			continue
		}
		found = true
		if slices.Contains(clientPlaceholders, "{"+piece.placeholder+"}") {
			return nil, fmt.Errorf("placeholder {%s} within %q: give client_ip as a part of its own, which masks IPv6 addresses", piece.placeholder, text)
		}
		if err := checkPlaceholder(piece.placeholder); err != nil {
			return nil, fmt.Errorf("placeholder {%s}: %w", piece.placeholder, err)
		}
	}
	if !found {
		return nil, fmt.Errorf("no placeholder in %q: for a fixed text, want text %s", text, text)
	}
	return template, nil
}

// checkPlaceholder refuses placeholders that are known never to have a value,
// or to be too dear to ask for on every request. Caddy itself is asked which
// of its own it knows; those of other modules cannot be known here.
func checkPlaceholder(name string) error {
	switch {
	case strings.HasPrefix(name, "http.request.body"):
		return errors.New("it would read the whole body of every request into memory")
	case name == "http.request.client_ip":
		return errors.New("no such placeholder is known to Caddy: want the key source client_ip")
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
		return errors.New("no such placeholder is known to Caddy, so that it would always be empty")
	}
	return nil
}
