package requests

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/quic-go/quic-go/http3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/chromium"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

// TestGRPC: a client of gRPC learns that it was limited, and waits as long as it is told to.
func TestGRPC(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check.OK(t, err)
	server := grpc.NewServer()
	healthpb.RegisterHealthServer(server, health.NewServer())
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	port := servertest.FreePort(t)
	system.StartCaddy(t, system.Config{Sites: fmt.Sprintf(`
http://:%d {
	throttle {
		zone calls {
			limit 1 1/2s
		}
	}
	reverse_proxy h2c://%s
}`, port, listener.Addr())})

	ctx, cancel := context.WithTimeout(t.Context(), system.StartTime)
	defer cancel()
	dial := func(options ...grpc.DialOption) healthpb.HealthClient {
		options = append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))
		conn := check.Must(grpc.NewClient(fmt.Sprintf("127.0.0.1:%d", port), options...))(t)
		t.Cleanup(func() { conn.Close() })
		return healthpb.NewHealthClient(conn)
	}
	plain := dial()
	check.Must(plain.Check(ctx, new(healthpb.HealthCheckRequest)))(t)
	_, err = plain.Check(ctx, new(healthpb.HealthCheckRequest))
	s := status.Convert(err)
	check.That(t, s.Code() == codes.ResourceExhausted && strings.Contains(s.Message(), "Please wait"), "got %v, want RESOURCE_EXHAUSTED and for how long to wait", err)
	stream, err := plain.Watch(ctx, new(healthpb.HealthCheckRequest))
	if err == nil {
		_, err = stream.Recv()
	}
	check.That(t, status.Code(err) == codes.ResourceExhausted, "got %v for a stream, want RESOURCE_EXHAUSTED", err)
	patient := dial(grpc.WithDefaultServiceConfig(`{"methodConfig": [{"name": [{}], "retryPolicy": {
		"maxAttempts": 2, "initialBackoff": "0.001s", "maxBackoff": "0.001s", "backoffMultiplier": 1,
		"retryableStatusCodes": ["RESOURCE_EXHAUSTED"]}}]}`))
	began := time.Now()
	_, err = patient.Check(ctx, new(healthpb.HealthCheckRequest))
	check.That(t, err == nil, "got %v after %v, want the second attempt to wait, and pass", err, time.Since(began))
}

// TestCORS: a page of another origin calls the API of the recipe, and its script reads the refusal.
func TestCORS(t *testing.T) {
	t.Parallel()
	pages := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = w.Write([]byte("<!doctype html><title>page</title><link rel=icon href=data:,>"))
	}))
	defer pages.Close()
	var calls, others atomic.Int64
	up := system.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", "*") // as applications do
		if r.Method == http.MethodPut && r.Header.Get("X-Api-Key") == "k" {
			calls.Add(1)
		} else {
			others.Add(1)
		}
	})
	s := system.StartSection(t, "recipes/apis.md", "### Calls from browsers",
		"https://app.example.com", pages.URL, "localhost:3000", up.Address, "limit 20 20/m", "limit 3 1/h")
	b := chromium.NewTab(t, chromium.StartBrowser(t, chromedp.IgnoreCertErrors), "en", "light", 800, 600)
	b.Open(pages.URL)
	b.Run(fmt.Sprintf(`(async () => {
		const seen = [];
		for (let i = 0; i < 4; i++) {
			try {
				const a = await fetch(%q, {method: "PUT", headers: {"X-Api-Key": "k", "Content-Type": "application/json", "Accept": "application/json"}, body: "{}"});
				seen.push([a.status, a.headers.get("Retry-After"), a.headers.get("RateLimit"), await a.text()].join("|"));
			} catch (e) {
				seen.push(String(e));
			}
		}
		window.seen = seen;
	})()`, s.URL+"/v1/things"))
	b.When("the calls", "window.seen")
	seen := chromium.Eval[[]string](b, "window.seen")
	check.That(t, calls.Load() == 3 && others.Load() == 0, "got %d calls and %d other requests at the API, want 3 and no preflight", calls.Load(), others.Load())
	for i, want := range []string{`200||"keys";r=2;`, `200||"keys";r=1;`, `200||"keys";r=0;`, `429|10`} {
		check.That(t, strings.HasPrefix(seen[i], want), "call %d: got %q, want %s", i+1, seen[i], want)
	}
	check.That(t, strings.Contains(seen[3], "support_code") && strings.Contains(seen[3], `|"keys";r=0;`), "got the refusal %q, want its code and what remains", seen[3])
}

const secureSite = `
https://localhost:%d {
	tls internal
	throttle {
		zone pages {
			exempt {
				path /ready
			}
			limit 3 1/m
		}
	}
	respond {http.request.proto}
}`

// startSecure starts a site with TLS and returns its address.
func startSecure(t *testing.T) (c *system.Caddy, url string) {
	t.Helper()
	port := servertest.FreePort(t)
	c = system.StartCaddy(t, system.Config{Sites: fmt.Sprintf(secureSite, port), Protocols: "h1 h2 h3"})
	url = fmt.Sprintf("https://localhost:%d/", port)
	v := system.NewQUICVisitor(t, nil)
	system.Eventually(t, "a certificate", func() bool {
		_, err := v.Try(http.MethodGet, url+"ready")
		return err == nil
	})
	return c, url
}

func TestHTTP3IsThrottledAndSharesBucketsWithTheOthers(t *testing.T) {
	t.Parallel()
	_, url := startSecure(t)
	fast, old := system.NewQUICVisitor(t, nil), system.NewVisitorFrom(t, "h1", "127.0.0.1")
	for n, test := range []struct {
		v      *system.Visitor
		status int
		proto  string
	}{
		{fast, 200, "HTTP/3.0"},
		{old, 200, "HTTP/1.1"},
		{fast, 200, "HTTP/3.0"},
		{fast, 429, ""},
		{old, 429, ""},
	} {
		a := test.v.Get(t, url)
		check.Need(t, a.Status, test.status, "request %d over %s", n+1, test.v.Protocol)
		if test.status == 200 && a.Body != test.proto {
			t.Errorf("request %d: got %q, want %q", n+1, a.Body, test.proto)
		}
	}
}

func TestEarlyDataIsSentBackBeforeItIsCharged(t *testing.T) {
	t.Parallel()
	var c *system.Caddy
	var url string
	var a system.Answer
	var sessions tls.ClientSessionCache
	// Data that comes when the handshake is complete is not early any more: on a busy
	// machine that takes several tries.
	for range 5 {
		c, url = startSecure(t)
		sessions = tls.NewLRUClientSessionCache(10)
		check.Need(t, system.NewQUICVisitor(t, sessions).Get(t, url).Status, 200, "the first visit")
		if a = system.NewQUICVisitor(t, sessions).Send(t, http3.MethodGet0RTT, url); a.Status != 200 {
			break
		}
	}
	check.Assume(t, a.Status == http.StatusTooEarly && a.Header.Get("Retry-After") == "", "early data: got %d with Retry-After %q, want 425 without", a.Status, a.Header.Get("Retry-After"))
	check.Equal(t, c.Decisions(t, "pages", "admitted"), 1, "requests charged, want 1: early data is not")
	check.Equal(t, c.Metric(t, "caddy_throttle_requests_total", `zone="pages"`, `reason="early_data"`, `decision="refused"`), 1, "counted as early data")
	check.Equal(t, system.NewQUICVisitor(t, sessions).Get(t, url).Status, 200, "the same after the handshake")
}

// TestConnect: a WebSocket over HTTP/3 opens with CONNECT, as does a page of an upstream that knows none,
// which holds its slot until it is made. Any other CONNECT is refused: over HTTP/2 its body would reach an
// upstream as it is, and be read as requests that nobody has charged.
func TestConnect(t *testing.T) {
	t.Parallel()
	var reached atomic.Int64
	finish := make(chan struct{})
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reached.Add(1)
		switch r.URL.Path {
		case "/socket":
			conn, stream, err := http.NewResponseController(w).Hijack()
			if check.That(t, err == nil, "taking the connection over: %v", err); err == nil {
				defer conn.Close()
				fmt.Fprint(stream, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
				_ = stream.Flush()
				_, _ = io.Copy(conn, stream)
			}
		case "/page":
			body, _ := io.ReadAll(r.Body)
			fmt.Fprintf(w, "a page, of %d bytes", len(body))
			_ = http.NewResponseController(w).Flush()
			<-finish
		}
	}))
	t.Cleanup(upstream.Close)
	finished := sync.OnceFunc(func() { close(finish) })
	t.Cleanup(finished) // else the upstream would wait for it
	port := servertest.FreePort(t)
	c := system.StartCaddy(t, system.Config{Protocols: "h1 h2 h3", Sites: fmt.Sprintf(`
https://localhost:%d {
	tls internal
	respond /ready ok
	throttle {
		zone pages {
			limit 1000 1/d
		}
	}
	in_flight php 1
	reverse_proxy %s
}`, port, upstream.Listener.Addr())})
	url := fmt.Sprintf("https://localhost:%d", port)
	v := system.NewQUICVisitor(t, nil)
	system.Eventually(t, "a certificate", func() bool {
		_, err := v.Try(http.MethodGet, url+"/ready")
		return err == nil
	})
	opens := func(path string) (*http.Response, io.WriteCloser) {
		read, write := io.Pipe()
		t.Cleanup(func() { write.Close() })
		r := check.Must(http.NewRequestWithContext(t.Context(), http.MethodConnect, url+path, read))(t)
		r.Proto = "websocket"
		response := check.Must(v.Transport.RoundTrip(r))(t)
		t.Cleanup(func() { response.Body.Close() })
		check.Equal(t, response.StatusCode, http.StatusOK, "%s: the status", path)
		return response, write
	}
	socket, to := opens("/socket")
	fmt.Fprint(to, "hello")
	said := make([]byte, 5)
	_, err := io.ReadFull(socket.Body, said)
	check.That(t, err == nil && string(said) == "hello", "got %q through the WebSocket, and error %v", said, err)
	check.Equal(t, v.Get(t, url+"/").Status, http.StatusOK, "a request beside the WebSocket, which holds no slot")

	system.Eventually(t, "a free slot", func() bool { return c.Metric(t, "caddy_throttle_in_flight", `zone="php"`) == 0 })
	page, _ := opens("/page")
	check.Equal(t, v.Get(t, url+"/").Status, http.StatusTooManyRequests, "a request beside a page that is being made")
	finished()
	text := string(check.Must(io.ReadAll(page.Body))(t))
	check.Equal(t, text, "a page, of 0 bytes")

	before, charged := reached.Load(), c.Decisions(t, "pages", "admitted")
	conn := check.Must(tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port), &tls.Config{InsecureSkipVerify: true, ServerName: "localhost", NextProtos: []string{"h2"}}))(t)
	defer conn.Close()
	check.OK(t, conn.SetDeadline(time.Now().Add(system.StartTime)))
	_, _ = conn.Write([]byte(http2.ClientPreface))
	frames := http2.NewFramer(conn, conn)
	check.OK(t, frames.WriteSettings())
	var header bytes.Buffer
	fields := hpack.NewEncoder(&header)
	for name, value := range map[string]string{":method": "CONNECT", ":authority": fmt.Sprintf("localhost:%d", port)} {
		check.OK(t, fields.WriteField(hpack.HeaderField{Name: name, Value: value}))
	}
	check.OK(t, frames.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: header.Bytes(), EndHeaders: true}))
	for range 10 {
		check.OK(t, frames.WriteData(1, false, []byte("POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nguess")))
	}
	status := ""
	for decoder := hpack.NewDecoder(4096, nil); status == ""; {
		frame := check.Must(frames.ReadFrame())(t)
		if answer, is := frame.(*http2.HeadersFrame); is {
			status = check.Must(decoder.DecodeFull(answer.HeaderBlockFragment()))(t)[0].Value
		}
	}
	check.Equal(t, status, "501", "a CONNECT")
	check.That(t, reached.Load() == before && c.Decisions(t, "pages", "admitted") == charged, "got %d requests to the upstream, want none", reached.Load()-before)
}
