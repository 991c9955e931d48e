package swarm

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

// largeAnswer is larger than the buffers of net/http, and less than an answer may hold.
var largeAnswer = strings.Repeat("0123456789abcdef-0123456789abcde\n", 6000)

// startAnswers starts an upstream that answers in many ways, over HTTP/1.1 and h2c.
func startAnswers(t *testing.T) (address string) {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("/page", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Add("Set-Cookie", "one=1")
		w.Header().Add("Set-Cookie", "two=2")
		_, _ = io.WriteString(w, "<p>asked with {{.Req.Method}}</p>\n")
	})
	mux.HandleFunc("/untyped", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "<html>")
		_, _ = io.WriteString(w, "<body>")
	})
	mux.HandleFunc("/large", func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "large.txt", time.Unix(1e9, 0), strings.NewReader(largeAnswer))
	})
	mux.HandleFunc("/chunks", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		for chunk := range slices.Chunk([]byte(largeAnswer), 7001) {
			_, _ = w.Write(chunk)
			_ = http.NewResponseController(w).Flush()
		}
	})
	mux.HandleFunc("/early", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", "</style.css>; rel=preload; as=style")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Set("Link", "</late.css>; rel=preload; as=style")
		w.WriteHeader(http.StatusEarlyHints)
		_, _ = io.WriteString(w, largeAnswer)
	})
	for path, status := range map[string]int{"/none": 204, "/same": 304, "/moved": 302, "/missing": 404, "/failed": 500} {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Etag", `"a"`)
			w.Header().Set("Location", "/page")
			w.WriteHeader(status)
		})
	}
	mux.HandleFunc("/trailers", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		w.Header().Set("X-Known", "a")
		_, _ = io.WriteString(w, largeAnswer)
		w.Header().Set("X-Sum", "announced")
		w.Header().Set(http.TrailerPrefix+"X-More", "not announced")
	})
	mux.HandleFunc("/rpc", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Trailer", "Grpc-Status")
		_, _ = io.WriteString(w, "\x00\x00\x00\x00\x02hi")
		_ = http.NewResponseController(w).Flush()
		w.Header().Set("Grpc-Status", "7")
	})
	mux.HandleFunc("/short", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(len(largeAnswer)))
		_, _ = io.WriteString(w, largeAnswer[:100_000])
		panic(http.ErrAbortHandler)
	})
	mux.HandleFunc("/broken", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, largeAnswer[:100_000])
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	mux.HandleFunc("/nothing", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	server := httptest.NewUnstartedServer(mux)
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return strings.TrimPrefix(server.URL, "http://")
}

// A sight is what a client sees of an answer.
type sight struct {
	status  int
	early   []string
	header  http.Header
	body    string
	trailer http.Header
	broken  bool
}

func look(v *system.Visitor, method, url, ranges string) (s sight, err error) {
	ctx := httptrace.WithClientTrace(context.Background(), &httptrace.ClientTrace{
		Got1xxResponse: func(status int, header textproto.MIMEHeader) error {
			s.early = append(s.early, fmt.Sprint(status, " ", header.Get("Link")))
			return nil
		},
	})
	req, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return s, err
	}
	req.Header.Set("Accept-Encoding", "gzip")
	if ranges != "" {
		req.Header.Set("Range", ranges)
	}
	resp, err := v.Do(req)
	if err != nil {
		return sight{broken: true}, nil
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	s.status, s.header, s.body, s.trailer, s.broken = resp.StatusCode, resp.Header.Clone(), string(body), resp.Trailer, err != nil
	s.header.Del("Date")
	if method == "HEAD" && strings.HasSuffix(url, "/chunks") {
		s.header.Del("Content-Length") // its HTTP/3 server may add a 0
	}
	if s.header.Get("Content-Encoding") == "gzip" {
		s.header.Del("Content-Length") // where it was flushed may differ
		if unzip, err := gzip.NewReader(bytes.NewReader(body)); err == nil {
			plain, err := io.ReadAll(unzip)
			s.body, s.broken = string(plain), s.broken || err != nil
		}
	}
	return s, nil
}

// Whatever the zone does with answers, clients see what they would see without it.
func TestClientsSeeTheSameAnswersWithShareAndWithout(t *testing.T) {
	t.Parallel()
	files := t.TempDir()
	if err := os.WriteFile(filepath.Join(files, "file.txt"), []byte(largeAnswer), 0o644); err != nil {
		t.Fatal(err)
	}
	upstream, dead := startAnswers(t), servertest.FreePort(t)
	proxy := "reverse_proxy " + upstream
	variants := map[string]string{ // %s is where the zone is
		"proxy":       "%s\n" + proxy,
		"h2c":         "%s\nreverse_proxy h2c://" + upstream,
		"dead":        fmt.Sprintf("%%s\nreverse_proxy 127.0.0.1:%d", dead),
		"gzipOut":     "encode gzip\n%s\n" + proxy,
		"gzipIn":      "%s\nencode gzip\n" + proxy,
		"templateOut": "templates\n%s\n" + proxy,
		"templateIn":  "%s\ntemplates\n" + proxy,
		"headerOut":   "header >X-Late {http.response.header.Last-Modified}\n%s\n" + proxy,
		"interceptIn": "%s\nintercept {\n@bad status 404\nhandle_response @bad {\nrespond gone 410\n}\n}\n" + proxy,
		"interceptOut": "intercept {\n@bad status 404\nhandle_response @bad {\nrespond gone 410\n}\n}\n%s\n" +
			proxy,
		"copied": "%s\nreverse_proxy " + upstream + " {\n@ok status 200\nhandle_response @ok {\nheader X-Copied yes\ncopy_response_headers\ncopy_response\n}\n}",
		"files":  "%s\nroot " + files + "\nfile_server",
		"flush":  "%s\nreverse_proxy " + upstream + " {\nflush_interval 5ms\n}",
	}
	var routes strings.Builder
	zone := system.Block("throttle", system.Block("zone seconds", "limit 1000 1000/s\nsettle seconds")) + "\n" + system.Block("in_flight php 3", "wait 60s\nshare")
	for name, route := range variants {
		for side, throttle := range map[string]string{"with": zone, "without": ""} {
			fmt.Fprintf(&routes, "handle_path /%s/%s/* {\nroute {\n%s\n}\n}\n", side, name, fmt.Sprintf(route, throttle))
		}
	}
	routes.WriteString("handle_errors {\nrespond \"error {err.status_code}\"\n}\n")
	port, secure := servertest.FreePort(t), servertest.FreePort(t)
	c := system.StartCaddy(t, system.Config{Protocols: "h1 h2 h2c h3", Grace: "1s", Sites: fmt.Sprintf("http://:%d {\n%s\n}\nhttps://localhost:%d {\ntls internal\n%[2]s\n}\n", port, routes.String(), secure)})
	visitors := map[*system.Visitor]string{
		system.NewVisitor(t, "h1"):    fmt.Sprintf("http://127.0.0.1:%d", port),
		system.NewVisitor(t, "h2"):    fmt.Sprintf("http://127.0.0.1:%d", port),
		system.NewQUICVisitor(t, nil): fmt.Sprintf("https://localhost:%d", secure),
	}
	asks := []struct{ method, path, ranges string }{
		{"GET", "/page", ""},
		{"HEAD", "/page", ""},
		{"GET", "/untyped", ""},
		{"GET", "/large", ""},
		{"HEAD", "/large", ""},
		{"GET", "/large", "bytes=7-150000"},
		{"GET", "/large", "bytes=1-2,90000-120000"},
		{"GET", "/chunks", ""},
		{"HEAD", "/chunks", ""},
		{"GET", "/early", ""},
		{"GET", "/none", ""},
		{"GET", "/same", ""},
		{"GET", "/moved", ""},
		{"GET", "/missing", ""},
		{"GET", "/failed", ""},
		{"GET", "/trailers", ""},
		{"GET", "/rpc", ""},
		{"GET", "/short", ""},
		{"GET", "/broken", ""},
		{"GET", "/nothing", ""},
	}
	fileAsks := []struct{ method, path, ranges string }{
		{"GET", "/file.txt", ""},
		{"HEAD", "/file.txt", ""},
		{"GET", "/file.txt", "bytes=7-150000"},
		{"GET", "/file.txt", "bytes=1-2,90000-120000"},
		{"GET", "/file.txt", "bytes=900000-"},
		{"GET", "/absent.txt", ""},
	}
	for v, base := range visitors {
		t.Run(v.Protocol, func(t *testing.T) {
			system.Eventually(t, "a certificate", func() bool {
				_, err := v.Try("GET", base+"/none")
				return err == nil
			})
			for _, name := range slices.Sorted(maps.Keys(variants)) {
				list := asks
				if name == "files" {
					list = fileAsks
				}
				for _, ask := range list {
					want, err := look(v, ask.method, base+"/without/"+name+ask.path, ask.ranges)
					if err != nil {
						t.Fatal(err)
					}
					got, err := look(v, ask.method, base+"/with/"+name+ask.path, ask.ranges)
					if err != nil {
						t.Fatal(err)
					}
					wantSame(t, fmt.Sprint(name, " ", ask), got, want)
				}
			}
		})
	}
	system.Eventually(t, "all slots to be free", func() bool { return c.Served(t, "php") == 0 })
}

// wantSame wants two answers to be the same. Of a broken one, both sides may have got
// another part.
func wantSame(t *testing.T, what string, got, want sight) {
	t.Helper()
	if want.broken && got.broken {
		if !strings.HasPrefix(largeAnswer, got.body) {
			t.Errorf("%s: got something else than the beginning", what)
		}
		return // HTTP/3 may lose the beginning, too
	}
	if got.broken != want.broken || got.status != want.status {
		t.Errorf("%s: got %d, broken %v, %d bytes, want %d, %v, %d", what, got.status, got.broken, len(got.body), want.status, want.broken, len(want.body))
		return
	}
	for _, header := range []http.Header{got.header, want.header} {
		if strings.HasPrefix(header.Get("Content-Type"), "multipart/byteranges") {
			header.Del("Content-Type") // a random boundary
			got.body, want.body = fmt.Sprint(len(got.body)), fmt.Sprint(len(want.body))
		}
	}
	if !maps.EqualFunc(got.header, want.header, slices.Equal) {
		t.Errorf("%s: got the headers %v, want %v", what, got.header, want.header)
	}
	if !slices.Equal(got.early, want.early) {
		t.Errorf("%s: got the early hints %q, want %q", what, got.early, want.early)
	}
	if got.body != want.body {
		t.Errorf("%s: got %d bytes, want %d, or others", what, len(got.body), len(want.body))
	}
	if !maps.EqualFunc(got.trailer, want.trailer, slices.Equal) {
		t.Errorf("%s: got the trailers %v, want %v", what, got.trailer, want.trailer)
	}
}

// newNarrowVisitor returns a visitor with HTTP/3 that a server may send little to before
// it reads.
func newNarrowVisitor(t *testing.T) *system.Visitor {
	t.Helper()
	transport := &http3.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, // the certificates are caddy's own
		QUICConfig:      &quic.Config{InitialStreamReceiveWindow: 16 << 10, MaxStreamReceiveWindow: 16 << 10},
	}
	t.Cleanup(func() { transport.Close() })
	return &system.Visitor{Client: &http.Client{Transport: transport, Timeout: system.StartTime}, Protocol: "h3", Address: "127.0.0.1"}
}

// While a client does not read, its slot is free, the access log waits for what it takes,
// and Caddy ends within its grace period.
func TestASlowReaderKeepsNeitherASlotNorCaddy(t *testing.T) {
	t.Parallel()
	u := system.StartUpstream(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, largeAnswer) })
	port := servertest.FreePort(t)
	c := system.StartCaddy(t, system.Config{Protocols: "h1 h2 h3", Grace: "1s", Sites: fmt.Sprintf("https://localhost:%d {\ntls internal\nlog\nrespond /ready 204\n%s\nreverse_proxy %s\n}",
		port, slots("php", 1), u.Address)})
	url := fmt.Sprintf("https://localhost:%d/", port)
	v := newNarrowVisitor(t)
	system.Eventually(t, "a certificate", func() bool {
		_, err := v.Try("GET", url+"ready")
		return err == nil
	})
	first, err := v.Client.Get(url + "first")
	if err != nil {
		t.Fatal(err)
	}
	defer first.Body.Close()
	system.Eventually(t, "the slot to be free", func() bool { return c.Served(t, "php") == 0 })
	held := c.Metric(t, "caddy_throttle_slot_seconds_total", `zone="php"`)
	began := time.Now()
	second, err := v.Client.Get(url + "second")
	if err != nil {
		t.Fatal(err)
	}
	defer second.Body.Close()
	system.Eventually(t, "the slot to be free", func() bool { return c.Served(t, "php") == 0 })
	if took := time.Since(began).Seconds(); c.Metric(t, "caddy_throttle_slot_seconds_total", `zone="php"`)-held > took {
		t.Errorf("got the slot held for longer than the %.3f seconds that there were", took)
	}
	if lines := c.LogLines("/first"); len(lines) > 0 {
		t.Errorf("got %q, want no line before the answer has been sent", lines)
	}
	body, err := io.ReadAll(first.Body)
	if err != nil || string(body) != largeAnswer {
		t.Errorf("got %d bytes, %v, want all of it", len(body), err)
	}
	system.Eventually(t, "a line in the access log", func() bool { return len(c.LogLines("/first")) == 1 })
	if line := c.LogLines("/first")[0]; !strings.Contains(line, fmt.Sprintf(`"size":%d`, len(largeAnswer))) || !strings.Contains(line, `"status":200`) {
		t.Errorf("got %s, want the size and status of the answer", line)
	}
	if err := c.ShutDown(); err != nil {
		t.Errorf("got %v while an answer waits for its client, want it to end", err)
	}
	if body, err := io.ReadAll(second.Body); err == nil {
		t.Errorf("got %d bytes without an error of an answer that Caddy broke off", len(body))
	}
}

func write(w io.Writer, text string) error {
	_, err := io.WriteString(w, text)
	return err
}
