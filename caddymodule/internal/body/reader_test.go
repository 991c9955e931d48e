package body

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"
)

const kib64 = 64 << 10

// look looks at a body with memory enough.
func look(r *http.Request, most int64) (*Ahead, *Body) {
	return NewMemory(1<<30).Look(r, netip.Prefix{}, most)
}

// looksAt serves requests after Look has been at their bodies.
func looksAt(most int64, serve func(w http.ResponseWriter, r *http.Request, seen *Body)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		reader, seen := look(r, most)
		defer reader.End(w)
		serve(w, r, seen)
	}
}

// protocols are those that a test's servers speak without TLS.
var protocols = []string{"h1", "h2"}

func both() *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	p.SetUnencryptedHTTP2(true)
	return p
}

// listen serves over real sockets.
func listen(t testing.TB, handler http.Handler) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.Config.Protocols = both()
	server.Start()
	t.Cleanup(server.Close)
	return server
}

// clientOf speaks one protocol.
func clientOf(t testing.TB, protocol string) *http.Client {
	t.Helper()
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetHTTP1(protocol == "h1")
	transport.Protocols.SetUnencryptedHTTP2(protocol == "h2")
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// leavesNobodyBehind checks that all goroutines end that the rest of the test
// starts, clients and all.
func leavesNobodyBehind(t *testing.T) {
	t.Helper()
	before := runtime.NumGoroutine()
	t.Cleanup(func() {
		for deadline := time.Now().Add(time.Minute); runtime.NumGoroutine() > before; runtime.Gosched() {
			if time.Now().After(deadline) {
				stacks := make([]byte, 1<<16)
				t.Fatalf("got %d goroutines, want the %d there were:\n%s", runtime.NumGoroutine(), before, stacks[:runtime.Stack(stacks, true)])
			}
		}
	})
}

// randomBytes are always the same, and look like nothing in particular.
func randomBytes(n int) string {
	random := rand.NewChaCha8([32]byte{byte(n)})
	data := make([]byte, n)
	random.Read(data)
	return string(data)
}

func answerOf(t *testing.T, client *http.Client, req *http.Request) string {
	t.Helper()
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func TestABodyIsHandedOnByteForByte(t *testing.T) {
	leavesNobodyBehind(t)
	server := listen(t, looksAt(kib64, func(w http.ResponseWriter, r *http.Request, seen *Body) {
		hash := sha256.New()
		n, err := io.Copy(hash, r.Body)
		if err != nil {
			t.Error(err)
		}
		length := int64(-1)
		if seen != nil {
			length = int64(len(seen.Data))
		}
		fmt.Fprintf(w, "%d %d %x", length, n, hash.Sum(nil))
	}))
	for _, protocol := range protocols {
		client := clientOf(t, protocol)
		for _, size := range []int{0, 1, kib64 - 1, kib64, kib64 + 1, 1 << 20} {
			for _, chunked := range []bool{false, true} {
				data := randomBytes(size)
				req, _ := http.NewRequest("POST", server.URL, strings.NewReader(data))
				if chunked {
					req.Body, req.ContentLength = io.NopCloser(req.Body), -1
				}
				seen := size
				if size > kib64 {
					seen = -1
				}
				want := fmt.Sprintf("%d %d %x", seen, size, sha256.Sum256([]byte(data)))
				if got := answerOf(t, client, req); got != want {
					t.Errorf("%s, %d bytes, chunked %v: got %q, want %q", protocol, size, chunked, got, want)
				}
			}
		}
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// TestAGigabyteGoesThroughAsItComes, in memory that does not grow with it.
func TestAGigabyteGoesThroughAsItComes(t *testing.T) {
	if testing.Short() {
		t.Skip("a gigabyte is not sent in short tests")
	}
	leavesNobodyBehind(t)
	const size = 1 << 30
	server := listen(t, looksAt(kib64, func(w http.ResponseWriter, r *http.Request, seen *Body) {
		n, err := io.Copy(io.Discard, r.Body)
		if err != nil || seen != nil {
			t.Errorf("got %v, and a body that was seen: %v", err, seen != nil)
		}
		fmt.Fprint(w, n)
	}))
	for _, chunked := range []bool{false, true} {
		req, _ := http.NewRequest("POST", server.URL, io.LimitReader(zeros{}, size))
		req.ContentLength = size
		if chunked {
			req.ContentLength = -1
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		got := answerOf(t, clientOf(t, "h1"), req)
		runtime.ReadMemStats(&after)
		if got != fmt.Sprint(size) {
			t.Errorf("chunked %v: got %s bytes at the upstream, want %d", chunked, got, size)
		}
		if used := (after.TotalAlloc - before.TotalAlloc) >> 20; used > 16 {
			t.Errorf("chunked %v: got %d MiB allocated, want no more than a few", chunked, used)
		}
	}
}

// ask sends what no client in Go would, and returns the answer.
func ask(t *testing.T, address, request string) *http.Response {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	conn.(*net.TCPConn).CloseWrite()
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return nil
	}
	body, _ := io.ReadAll(resp.Body)
	resp.Body = io.NopCloser(bytes.NewReader(body))
	return resp
}

func TestABodyThatLiesAboutItsLengthIsNotUnderstood(t *testing.T) {
	leavesNobodyBehind(t)
	for _, test := range []struct{ about, headers, body, seen, atUpstream string }{ // "-" if it gets an error
		{"more than is sent", "Content-Length: 100", "[1,2,3]", "-", "-"},
		{"less than is sent", "Content-Length: 5", "[1,2]3]", "[1,2]", "[1,2]"},
		{"chunks that break off", "Transfer-Encoding: chunked", "3\r\n[1,\r\n", "-", "-"},
		{"a chunk that breaks off", "Transfer-Encoding: chunked", "9\r\n[1,", "-", "-"},
		{"a chunk of no size", "Transfer-Encoding: chunked", "x\r\n[1,", "-", "-"},
		{"a chunk of any size", "Transfer-Encoding: chunked", "fffffffffffffffff\r\n[1,", "-", "-"},
		{"many chunks", "Transfer-Encoding: chunked", "1\r\n[\r\n1\r\n1\r\n1\r\n]\r\n0\r\n\r\n", "[1]", "[1]"},
		{"chunks with extensions and trailers", "Transfer-Encoding: chunked\r\nTrailer: X-A", "3;x=y\r\n[1]\r\n0\r\nX-A: b\r\n\r\n", "[1]", "[1]"},
	} {
		t.Run(test.about, func(t *testing.T) {
			server := listen(t, looksAt(kib64, func(_ http.ResponseWriter, r *http.Request, seen *Body) {
				got := "-"
				if seen != nil {
					got = string(seen.Data)
				}
				body, err := io.ReadAll(r.Body)
				if err != nil {
					body = []byte("-")
				}
				if got != test.seen || string(body) != test.atUpstream {
					t.Errorf("got %q, and %q at the upstream, want %q and %q", got, body, test.seen, test.atUpstream)
				}
				if AllReceived(r) != (err == nil) {
					t.Errorf("got a body that was received %v, and read with %v", AllReceived(r), err)
				}
			}))
			ask(t, server.Listener.Addr().String(), "POST / HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n"+test.headers+"\r\n\r\n"+test.body)
		})
	}
}

func TestABodyThatNeverEndsIsHandedOn(t *testing.T) {
	leavesNobodyBehind(t)
	for _, protocol := range protocols {
		for _, reads := range []int64{0, 10 << 20} { // of the upstream
			server := listen(t, looksAt(kib64, func(w http.ResponseWriter, r *http.Request, seen *Body) {
				n, err := io.CopyN(io.Discard, r.Body, reads)
				if n != reads || seen != nil || AllReceived(r) {
					t.Errorf("%s: got %d bytes at the upstream and %v, want %d", protocol, n, err, reads)
				}
				w.WriteHeader(http.StatusTeapot)
			}))
			req, _ := http.NewRequest("POST", server.URL, io.NopCloser(zeros{}))
			// h1 clients may not get to see the answer, as they are still sending.
			resp, err := clientOf(t, protocol).Do(req)
			if err == nil {
				resp.Body.Close()
			}
			if protocol == "h2" && (err != nil || resp.StatusCode != http.StatusTeapot) {
				t.Errorf("%s: got %v, %v, want 418", protocol, resp, err)
			}
		}
	}
}

func TestExpectContinueIsAnsweredWhenTheBodyIsWanted(t *testing.T) {
	leavesNobodyBehind(t)
	for _, wanted := range []bool{true, false} {
		server := listen(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if wanted {
				reader, seen := look(r, kib64)
				defer reader.End(w)
				if n, ok := seen.Items(Path{}); n != 3 || !ok {
					t.Errorf("got %d items, %v, want 3", n, ok)
				}
			}
			if AllReceived(r) != wanted {
				t.Errorf("got a body that was received %v, want %v", AllReceived(r), wanted)
			}
			w.WriteHeader(http.StatusTeapot)
		}))
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprint(conn, "POST / HTTP/1.1\r\nHost: example.com\r\nExpect: 100-continue\r\nContent-Length: 7\r\n\r\n")
		reader := bufio.NewReader(conn)
		if wanted {
			if line, err := reader.ReadString('\n'); !strings.HasPrefix(line, "HTTP/1.1 100 ") {
				t.Fatalf("got %q, %v, want 100", line, err)
			}
			reader.ReadString('\n')
			fmt.Fprint(conn, "[1,2,3]")
		}
		resp, err := http.ReadResponse(reader, nil)
		if err != nil || resp.StatusCode != http.StatusTeapot {
			t.Errorf("wanted %v: got %v, %v, want 418 and nothing before", wanted, resp, err)
		}
		conn.Close()
	}
}

// TestAnotherBoundOnBodiesHolds: the error of a handler before us, such as
// Caddy's request_body, reaches those who read the body after us as it is.
func TestAnotherBoundOnBodiesHolds(t *testing.T) {
	tooLarge := errors.New("too large")
	for _, length := range []int64{-1, 2000} {
		r := httptest.NewRequest("POST", "/", io.NopCloser(io.MultiReader(strings.NewReader("[1,2]"), failing{tooLarge})))
		r.ContentLength = length
		_, seen := look(r, kib64)
		data, err := io.ReadAll(r.Body)
		if seen != nil || string(data) != "[1,2]" || err != tooLarge {
			t.Errorf("length %d: got %q and %v, want all there is and the error", length, data, err)
		}
		if AllReceived(r) {
			t.Errorf("length %d: got a body received that is not", length)
		}
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// watched is a body that is not to be read.
type watched struct{ read bool }

func (w *watched) Read([]byte) (int, error) {
	w.read = true
	return 0, io.EOF
}

func (w *watched) Close() error { return nil }

func TestBodiesThatAreNotReadAhead(t *testing.T) {
	for _, test := range []struct {
		about, method string
		length        int64
		headers       []string
		understood    bool
	}{
		{"longer than is looked at", "POST", kib64 + 1, nil, false},
		{"a tunnel", "CONNECT", -1, nil, true},
		{"a tunnel that names a type", "CONNECT", -1, []string{"Content-Type", "application/json", "Content-Encoding", "gzip"}, true},
		{"a tunnel with a length", "CONNECT", 10, nil, false},
		{"a WebSocket with a body", "GET", -1, []string{"Upgrade", "WebSocket", "Connection", "Upgrade"}, false},
		{"a WebSocket", "GET", 0, []string{"Upgrade", "websocket", "Connection", "Upgrade"}, true},
		{"gRPC", "POST", -1, []string{"Content-Type", "application/grpc"}, false},
		{"gRPC with its encoding", "POST", -1, []string{"Content-Type", "Application/gRPC+proto"}, false},
		{"Connect", "POST", -1, []string{"Content-Type", "application/connect+json"}, false},
		{"no body", "POST", 0, []string{"Content-Type", "application/json"}, true},
	} {
		r := httptest.NewRequest(test.method, "http://example.com/", nil)
		body := &watched{}
		r.Body, r.ContentLength = body, test.length
		for i := 0; i < len(test.headers); i += 2 {
			r.Header.Set(test.headers[i], test.headers[i+1])
		}
		reader, seen := look(r, kib64)
		if reader != nil || body.read || r.Body != io.ReadCloser(body) {
			t.Errorf("%s: got its body touched", test.about)
		}
		if n, ok := seen.Items(Path{}); ok != test.understood || ok && n != 1 {
			t.Errorf("%s: got %d items, %v, want %v", test.about, n, ok, test.understood)
		}
		if seen.Empty() != test.understood {
			t.Errorf("%s: got an empty body: %v, want %v", test.about, seen.Empty(), test.understood)
		}
		if got, want := AllReceived(r), test.length == 0; got != want {
			t.Errorf("%s: got it received %v, want %v", test.about, got, want)
		}
		reader.End(httptest.NewRecorder())
	}
}

func TestRepeatedHeadersAreSeenTogether(t *testing.T) {
	for _, name := range []string{"Content-Type", "Content-Encoding"} {
		r := httptest.NewRequest("POST", "/", strings.NewReader("[1,2]"))
		r.Header[name] = []string{"identity", "gzip"}
		reader, seen := look(r, kib64)
		if n, ok := seen.Items(Path{}); ok {
			t.Errorf("%s: got %d items, want it not understood", name, n)
		}
		reader.End(httptest.NewRecorder())
		if !AllReceived(r) {
			t.Errorf("%s: got a body that was not received", name)
		}
	}
}

// TestTwoMayLookAtOneBody, as two handlers on the way do.
func TestTwoMayLookAtOneBody(t *testing.T) {
	r := httptest.NewRequest("POST", "/", strings.NewReader("[1,2]"))
	first, seenFirst := look(r, kib64)
	second, seenSecond := look(r, kib64)
	data, err := io.ReadAll(r.Body)
	if string(seenFirst.Data) != "[1,2]" || string(seenSecond.Data) != "[1,2]" || string(data) != "[1,2]" || err != nil {
		t.Errorf("got %q, %q and %q, %v, want the same", seenFirst.Data, seenSecond.Data, data, err)
	}
	second.End(httptest.NewRecorder())
	first.End(httptest.NewRecorder())
}
