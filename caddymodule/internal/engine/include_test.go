package engine_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// includeSite is a site with a page that includes another one, both limited. It returns
// clients of it by the protocol that they speak, and its address.
func includeSite(t *testing.T, capacity int) (clients map[string]*http.Client, address string) {
	t.Helper()
	root := t.TempDir()
	for name, text := range map[string]string{
		"page.html":  `a page with {{httpInclude "/part.html"}}`,
		"part.html":  `a part`,
		"outer.html": `{{httpInclude "/page.html"}}`,
	} {
		check.OK(t, os.WriteFile(filepath.Join(root, name), []byte(text), 0o600))
	}
	folder, err := os.MkdirTemp("", "include") // names of sockets are short
	check.OK(t, err)
	t.Cleanup(func() { os.RemoveAll(folder) })
	address, socket := "127.0.0.1"+servertest.FreeAddress(t), filepath.Join(folder, "s")
	site := fmt.Sprintf("{\nthrottle {\nzone site {\nlimit %d 1/d\n}\n}\nroot * %s\ntemplates\nfile_server\n}\n", capacity, root)
	servertest.MustLoad(t, "{\nservers {\nprotocols h1 h2c\n}\n}\nhttp://"+address+" "+site+"http:// "+strings.Replace(site, "{\n", "{\nbind unix/"+socket+"\n", 1))
	h1, h2c := new(http.Transport), &http.Transport{Protocols: new(http.Protocols)}
	h2c.Protocols.SetUnencryptedHTTP2(true)
	unix := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	clients = make(map[string]*http.Client)
	for name, transport := range map[string]*http.Transport{"HTTP/1": h1, "HTTP/2": h2c, "a socket": unix} {
		clients[name] = &http.Client{Transport: transport, Timeout: time.Minute}
		t.Cleanup(transport.CloseIdleConnections)
	}
	return clients, address
}

// The included page is requested by the server itself, as of 127.0.0.1.
func TestAPageThatIncludesAnotherIsChargedOnce(t *testing.T) {
	const capacity = 5
	clients, address := includeSite(t, capacity)
	for name, client := range clients {
		for _, path := range []string{"/page.html", "/outer.html"} {
			reset(t, "site", "127.0.0.1", "@share")
			for i := range capacity + 1 {
				response, err := client.Get("http://" + address + path)
				check.OK(t, err, "%s", name)
				text, _ := io.ReadAll(response.Body)
				response.Body.Close()
				want := http.StatusOK
				if i == capacity {
					want = http.StatusTooManyRequests
				}
				if response.StatusCode != want || want == http.StatusOK && !strings.Contains(string(text), "a page with a part") {
					t.Errorf("%s of %s, visit %d: got %v, %q, want %v", name, path, i+1, response.StatusCode, text, want)
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
		check.OK(t, servertest.TheMemory(t).Reset(context.Background(), zone, key, false))
	}
}

// Nothing that a client sends makes its request look like one of the server's own.
func TestNoClientPassesForTheServerItself(t *testing.T) {
	const capacity = 3
	clients, address := includeSite(t, capacity)
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
	for name, client := range clients {
		reset(t, "site", "127.0.0.1", "@share")
		passed := 0
		for _, header := range hostile {
			r, _ := http.NewRequest(http.MethodGet, "http://"+address+"/part.html", nil)
			r.Header = header.Clone()
			if name == "HTTP/2" {
				r.Header.Del("Connection")
			}
			response, err := client.Do(r)
			check.OK(t, err, "%s", name)
			response.Body.Close()
			if response.StatusCode == http.StatusOK {
				passed++
			}
		}
		check.That(t, passed == capacity, "%s: got %d of %d requests through, want %d", name, passed, len(hostile), capacity)
	}
}

// Its address is the very one that included requests have, port and all.
func TestAClientWithTheAddressOfIncludedRequestsIsCharged(t *testing.T) {
	const capacity = 3
	_, plain := includeSite(t, capacity)
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 10000}}
	conn, err := dialer.Dial("tcp", plain)
	if err != nil {
		t.Skipf("the port is in use: %v", err)
	}
	defer conn.Close()
	answers := bufio.NewReader(conn)
	for i := range capacity + 1 {
		fmt.Fprintf(conn, "GET /part.html HTTP/1.1\r\nHost: %s\r\nCaddy-Templates-Include: 1\r\n\r\n", plain)
		response := check.Must(http.ReadResponse(answers, nil))(t)
		_, _ = io.Copy(io.Discard, response.Body)
		want := http.StatusOK
		if i == capacity {
			want = http.StatusTooManyRequests
		}
		check.Equal(t, response.StatusCode, want, "request %d", i+1)
	}
}
