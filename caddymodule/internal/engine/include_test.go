package engine_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
)

// includeSite is a site with a page that includes another one, both limited, over
// every protocol. It returns where it listens: for HTTP, for HTTPS and as a socket.
func includeSite(t *testing.T, capacity int, zone string) (plain, secure, socket string) {
	t.Helper()
	root := t.TempDir()
	for name, text := range map[string]string{
		"page.html":  `a page with {{httpInclude "/part.html"}}`,
		"part.html":  `a part`,
		"outer.html": `{{httpInclude "/page.html"}}`,
	} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	plain, secure = "127.0.0.1"+servertest.FreeAddress(t), "127.0.0.1"+servertest.FreeAddress(t)
	// Names of sockets are short, and Caddy writes certificates when it likes.
	folder, err := os.MkdirTemp("", "include")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(folder) })
	socket = filepath.Join(folder, "s")
	site := fmt.Sprintf("throttle {\nzone site {\nlimit %d 1/d\n%s\n}\n}\nroot * %s\ntemplates\nfile_server\n", capacity, zone, root)
	servertest.MustLoad(t, fmt.Sprintf(`{
		skip_install_trust
		auto_https disable_redirects
		storage file_system %s
		servers {
			protocols h1 h2 h2c h3
		}
	}
	http://%s {
		%[4]s
	}
	https://%[3]s {
		tls internal
		%[4]s
	}
	http:// {
		bind unix/%[5]s
		%[4]s
	}`, folder, plain, secure, site, socket))
	servertest.Soon(t, "a certificate", func() bool {
		conn, err := tls.Dial("tcp", secure, &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			return false
		}
		conn.Close()
		return true
	})
	return plain, secure, socket
}

// includeClients are clients of each protocol, of the site that includeSite returns.
func includeClients(t *testing.T, plain, secure, socket string) map[string]func(*http.Request) (*http.Response, error) {
	t.Helper()
	insecure := &tls.Config{InsecureSkipVerify: true}
	h1, h2c, h2 := new(http.Transport), new(http.Transport), &http.Transport{TLSClientConfig: insecure, ForceAttemptHTTP2: true}
	h2c.Protocols = new(http.Protocols)
	h2c.Protocols.SetUnencryptedHTTP2(true)
	unix := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	h3 := &http3.Transport{TLSClientConfig: insecure, QUICConfig: &quic.Config{}}
	t.Cleanup(func() {
		for _, transport := range []*http.Transport{h1, h2c, h2, unix} {
			transport.CloseIdleConnections()
		}
		h3.Close()
	})
	over := func(transport http.RoundTripper, scheme, host string) func(*http.Request) (*http.Response, error) {
		return func(r *http.Request) (*http.Response, error) {
			r.URL.Scheme, r.URL.Host, r.Host = scheme, host, host
			ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
			t.Cleanup(cancel)
			return transport.RoundTrip(r.WithContext(ctx))
		}
	}
	return map[string]func(*http.Request) (*http.Response, error){
		"HTTP/1": over(h1, "http", plain), "HTTP/2 without TLS": over(h2c, "http", plain),
		"HTTP/2": over(h2, "https", secure), "HTTP/3": over(h3, "https", secure), "a socket": over(unix, "http", "socket.example"),
	}
}

// includeProtocols are the major versions that the clients speak.
var includeProtocols = map[string]int{"HTTP/1": 1, "HTTP/2 without TLS": 2, "HTTP/2": 2, "HTTP/3": 3, "a socket": 1}

// The included page is requested by the server itself, as of 127.0.0.1.
func TestAPageThatIncludesAnotherIsChargedOnce(t *testing.T) {
	const capacity = 5
	plain, secure, socket := includeSite(t, capacity, "")
	for name, send := range includeClients(t, plain, secure, socket) {
		for _, path := range []string{"/page.html", "/outer.html"} {
			reset(t, "site", "127.0.0.1", "@share")
			for i := range capacity + 1 {
				r, _ := http.NewRequest(http.MethodGet, "http://example.com"+path, nil)
				response, err := send(r)
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				text, _ := io.ReadAll(response.Body)
				response.Body.Close()
				want := http.StatusOK
				if i == capacity {
					want = http.StatusTooManyRequests
				}
				if response.StatusCode != want || want == http.StatusOK && !strings.Contains(string(text), "a page with a part") {
					t.Errorf("%s of %s, visit %d: got %v, %q, want %v", name, path, i+1, response.StatusCode, text, want)
				}
				if response.ProtoMajor != includeProtocols[name] {
					t.Errorf("%s: got %s", name, response.Proto)
				}
			}
		}
	}
}

// reset empties the buckets of some keys of a zone, which are those of clients on
// this machine and over a socket.
func reset(t *testing.T, zone string, keys ...string) {
	t.Helper()
	for _, key := range keys {
		if err := servertest.TheMemory(t).Reset(context.Background(), zone, key, false); err != nil {
			t.Fatal(err)
		}
	}
}

// Nothing that a client sends makes its request look like one of the server's own.
func TestNoClientPassesForTheServerItself(t *testing.T) {
	const capacity = 3
	plain, secure, socket := includeSite(t, capacity, "")
	hostile := []http.Header{
		{},
		{"Caddy-Templates-Include": {"1"}},
		{"Caddy-Templates-Include": {"2"}, "Accept-Encoding": {"identity"}},
		{"X-Forwarded-For": {"127.0.0.1:10000"}},
		{"X-Forwarded-For": {"127.0.0.1"}},
		{"X-Real-Ip": {"127.0.0.1:10000"}},
		{"Remote-Addr": {"127.0.0.1:10000"}, "Remoteaddr": {"127.0.0.1:10000"}},
		{"Forwarded": {`for="127.0.0.1:10000"`}},
		{"Connection": {"Remote-Addr, X-Forwarded-For"}, "Local-Addr": {""}},
	}
	for name, send := range includeClients(t, plain, secure, socket) {
		reset(t, "site", "127.0.0.1", "@share")
		passed := 0
		for _, header := range hostile {
			r, _ := http.NewRequest(http.MethodGet, "http://example.com/part.html", nil)
			r.Header = header.Clone()
			if includeProtocols[name] > 1 {
				r.Header.Del("Connection")
			}
			response, err := send(r)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			response.Body.Close()
			if response.StatusCode == http.StatusOK {
				passed++
			}
		}
		if passed != capacity {
			t.Errorf("%s: got %d of %d requests through, want %d", name, passed, len(hostile), capacity)
		}
	}
}

// Its address is the very one that included requests have, port and all.
func TestAClientWithTheAddressOfIncludedRequestsIsCharged(t *testing.T) {
	const capacity = 3
	plain, _, _ := includeSite(t, capacity, "")
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 10000}}
	conn, err := dialer.Dial("tcp", plain)
	if err != nil {
		t.Skipf("the port is in use: %v", err)
	}
	defer conn.Close()
	answers := bufio.NewReader(conn)
	for i := range capacity + 1 {
		fmt.Fprintf(conn, "GET /part.html HTTP/1.1\r\nHost: %s\r\nCaddy-Templates-Include: 1\r\n\r\n", plain)
		response, err := http.ReadResponse(answers, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, response.Body)
		want := http.StatusOK
		if i == capacity {
			want = http.StatusTooManyRequests
		}
		if response.StatusCode != want {
			t.Errorf("request %d: got %v, want %v", i+1, response.StatusCode, want)
		}
	}
}

func TestAPageThatIncludesAnotherTakesOnePlaceInTheQueue(t *testing.T) {
	for _, zone := range []string{"key text all\ndelay", "key text all\nblock 1h", "settle bytes 1KiB\ncost 2"} {
		t.Run(zone, func(t *testing.T) {
			plain, secure, socket := includeSite(t, 4, zone)
			send := includeClients(t, plain, secure, socket)["HTTP/1"]
			r, _ := http.NewRequest(http.MethodGet, "http://example.com/outer.html", nil)
			response, err := send(r)
			if err != nil {
				t.Fatal(err)
			}
			response.Body.Close()
			if response.StatusCode != http.StatusOK {
				t.Errorf("got %v, want 200", response.StatusCode)
			}
			servertest.WantEmpty(t, "site")
		})
	}
}
