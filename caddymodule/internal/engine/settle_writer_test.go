package engine_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
)

// listen serves the site over real sockets, h1 and h2 without TLS.
func listen(s *servertest.FuncSite) *httptest.Server {
	s.Helper()
	server := httptest.NewUnstartedServer(s)
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	s.Client = "127.0.0.1"
	s.Cleanup(server.Close)
	return server
}

// settleClient returns a client that speaks h1 or h2.
func settleClient(t testing.TB, protocol string) *http.Client {
	transport := &http.Transport{Protocols: new(http.Protocols), DisableCompression: true}
	transport.Protocols.SetHTTP1(protocol == "h1")
	transport.Protocols.SetUnencryptedHTTP2(protocol == "h2")
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: time.Minute}
}

// settleWriter is a response writer that records how it was written to.
type settleWriter struct {
	*httptest.ResponseRecorder
	readFrom, pushed int
}

func (w *settleWriter) ReadFrom(r io.Reader) (int64, error) {
	w.readFrom++
	return io.Copy(w.ResponseRecorder, r)
}

func (w *settleWriter) Push(string, *http.PushOptions) error {
	w.pushed++
	return nil
}

func TestASettlingWriterHidesNothingFromHandlers(t *testing.T) {
	s := servertest.NewFuncZone(t, "settle bytes 1")
	w := &settleWriter{ResponseRecorder: httptest.NewRecorder()}
	s.Serve = func(wrapped http.ResponseWriter, _ *http.Request) error {
		if n, err := wrapped.(io.ReaderFrom).ReadFrom(strings.NewReader("seven b")); n != 7 || err != nil {
			t.Errorf("ReadFrom: got %d, %v, want 7", n, err)
		}
		if err := http.NewResponseController(wrapped).Flush(); err != nil {
			t.Errorf("Flush: got %v", err)
		}
		return wrapped.(http.Pusher).Push("/x.css", nil)
	}
	s.ServeHTTP(w, httptest.NewRequest("GET", "http://example.com/", nil))
	if w.readFrom != 1 || !w.Flushed || w.pushed != 1 {
		t.Errorf("got %d ReadFrom, flushed %v, %d pushed, want each once", w.readFrom, w.Flushed, w.pushed)
	}
	s.WantLevel("settled", 7)
}

// TestFlushingSendsTheHeaders, and ends the time that is charged.
func TestFlushingSendsTheHeaders(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := servertest.NewFuncZone(t, "settle seconds")
		s.Serve = func(w http.ResponseWriter, _ *http.Request) error {
			time.Sleep(2 * time.Second)
			if err := http.NewResponseController(w).Flush(); err != nil {
				t.Errorf("Flush: got %v", err)
			}
			time.Sleep(time.Hour) // events are sent when they happen
			return nil
		}
		s.Get("/")
		if n, diff := s.Store.Sum(); n != 1 || diff != 1 {
			t.Errorf("got %d settlements of %v together, want one of 1", n, diff)
		}
	})
}

func TestAFileIsSentAndMeasured(t *testing.T) {
	const size = 1 << 20
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), make([]byte, size), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, protocol := range []string{"h1", "h2"} {
		for _, test := range []struct {
			method string
			want   float64
		}{{"GET", 1024}, {"HEAD", 0}} {
			s := servertest.NewFuncSite(t, `throttle {
				zone settled {
					limit 1000 1/d
					settle bytes 1KiB debt 1000
				}
			}
			file_server {
				root `+dir+`
			}`)
			server := listen(s)
			req, _ := http.NewRequest(test.method, server.URL+"/file", nil)
			resp, err := settleClient(t, protocol).Do(req)
			if err != nil {
				t.Fatal(err)
			}
			n, _ := io.Copy(io.Discard, resp.Body)
			if resp.ContentLength != size || test.method == "GET" && n != size {
				t.Errorf("%s %s: got %d bytes of %d, want the file", protocol, test.method, n, resp.ContentLength)
			}
			s.WantLevel("settled", test.want)
		}
	}
}

// TestATunnelWorksAndStaysReserved: the handler takes the connection over, as
// reverse_proxy does for WebSocket.
func TestATunnelWorksAndStaysReserved(t *testing.T) {
	s := servertest.NewFuncZone(t, "cost 2\nsettle header X-Cost")
	s.Serve = func(w http.ResponseWriter, _ *http.Request) error {
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", "echo")
		w.Header().Set("X-Cost", "50")
		w.WriteHeader(http.StatusSwitchingProtocols)
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return err
		}
		defer conn.Close()
		line, err := buffered.ReadString('\n')
		if err != nil {
			return err
		}
		_, err = conn.Write([]byte(line))
		return err
	}
	server := listen(s)
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: example.com\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	reader := bufio.NewReader(conn)
	resp, err := http.ReadResponse(reader, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := resp.Header["X-Cost"]; resp.StatusCode != 101 || resp.Header.Get("Upgrade") != "echo" || got != nil {
		t.Errorf("got %v with X-Cost %q, want 101 and none", resp.Status, got)
	}
	fmt.Fprint(conn, "hello\n")
	if line, err := reader.ReadString('\n'); line != "hello\n" {
		t.Errorf("got %q, %v through the tunnel, want hello", line, err)
	}
	if _, err := reader.ReadByte(); err != io.EOF {
		t.Errorf("got %v, want the end", err)
	}
	s.WantLevel("settled", 2)
	if got := s.Unsettled("settled"); got != 1 {
		t.Errorf("got %v unsettled, want 1", got)
	}
}

func TestATrailerThatTellsTheCostIsNotForTheClientEither(t *testing.T) {
	for _, protocol := range []string{"h1", "h2"} {
		s := servertest.NewFuncZone(t, "cost 2\nsettle header X-Cost")
		s.Serve = func(w http.ResponseWriter, _ *http.Request) error {
			w.Header().Set("Trailer", "X-Cost, X-Other")
			io.WriteString(w, "body")
			w.Header().Set("X-Cost", "3")
			w.Header().Set("X-Other", "4")
			return nil
		}
		server := listen(s)
		resp, err := settleClient(t, protocol).Get(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body)
		if got, other := resp.Trailer.Get("X-Cost"), resp.Trailer.Get("X-Other"); got != "" || other != "4" {
			t.Errorf("%s: the client sees the trailers %v, want X-Other alone", protocol, resp.Trailer)
		}
		s.WantLevel("settled", 3)
	}
}

// TestSettleAllocatesLittle compares a site with one that differs only in settle.
func TestSettleAllocatesLittle(t *testing.T) {
	const runs = 50 // in one, to see fractions
	allocations := func(directives, path string) float64 {
		s := servertest.NewFuncSite(t, directives+"\nsettle_upstream")
		s.Serve = func(w http.ResponseWriter, _ *http.Request) error {
			w.WriteHeader(http.StatusOK)
			return nil
		}
		return testing.AllocsPerRun(20, func() {
			for range runs {
				s.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "http://example.com"+path, nil))
			}
		}) / runs
	}
	site := func(options string) string {
		return `throttle {
			zone settled {
				limit 1000000 1000000/s
				exempt {
					path /free
				}
				` + options + `
			}
		}`
	}
	const rounding = 0.5 // the race detector empties pools now and then
	plain, free := allocations(site(""), "/"), allocations(site(""), "/free")
	for _, options := range []string{"settle seconds", "settle bytes 1", "settle header X-Cost", "settle status 200 4", "settle status 200 4 after"} {
		if got := allocations(site(options), "/") - plain; got > 2+rounding {
			t.Errorf("%s: got %v allocations more than without, want at most 2", options, got)
		}
		if got := allocations(site(options), "/free") - free; got > 1+rounding {
			t.Errorf("%s, exempt: got %v allocations more than without, want at most 1", options, got)
		}
	}
}

// TestWithoutSettleNothingStandsBetween: zones without settle do not pay for it.
func TestWithoutSettleNothingStandsBetween(t *testing.T) {
	for _, test := range []struct {
		options, path string
		wrapped       bool
	}{
		{"", "/", false},
		{"settle seconds", "/", true},
		{"settle seconds\nexempt {\npath /free\n}", "/free", false},
		{"settle header X-Cost\nexempt {\npath /free\n}", "/free", true}, // to strip it
	} {
		s := servertest.NewFuncZone(t, test.options)
		s.Serve = func(w http.ResponseWriter, _ *http.Request) error {
			if _, wrapped := w.(*limit.Observer); wrapped != test.wrapped {
				t.Errorf("%q, %s: got a %T, want it wrapped: %v", test.options, test.path, w, test.wrapped)
			}
			return nil
		}
		s.Get(test.path)
	}
}
