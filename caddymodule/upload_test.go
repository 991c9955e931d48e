package caddymodule

import (
	"bufio"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// uploadZones ask for the body in every way there is.
var uploadZones = map[string]string{
	"items": "cost body_items rows",
	"bytes": "cost body_bytes 1MiB",
	"form":  "key form log",
	"all":   "key form log\ncost body_items rows\nsettle header X-Cost",
}

// uploadSite hashes what its upstream is sent.
func uploadSite(t testing.TB, zone string) *settleSite {
	s := newSettleZone(t, "unread_body_cost 1\n"+zone)
	s.serve = func(w http.ResponseWriter, r *http.Request) error {
		hash := sha256.New()
		n, err := io.Copy(hash, r.Body)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(w, "%d %x", n, hash.Sum(nil))
		return err
	}
	return s
}

// uploadBytes are always the same, and look like nothing in particular.
func uploadBytes(n int) string {
	random := rand.NewChaCha8([32]byte{byte(n)})
	data := make([]byte, n)
	random.Read(data)
	return string(data)
}

// leavesNobodyBehind checks that all goroutines end that the rest of the test
// starts, clients and all.
func leavesNobodyBehind(t *testing.T) {
	t.Helper()
	before := runtime.NumGoroutine()
	t.Cleanup(func() {
		for deadline := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > before; runtime.Gosched() {
			if time.Now().After(deadline) {
				stacks := make([]byte, 1<<16)
				t.Fatalf("got %d goroutines, want the %d there were:\n%s", runtime.NumGoroutine(), before, stacks[:runtime.Stack(stacks, true)])
			}
		}
	})
}

func TestABodyIsHandedOnByteForByte(t *testing.T) {
	leavesNobodyBehind(t)
	const kib64 = 64 << 10
	for name, zone := range uploadZones {
		server := uploadSite(t, zone).listen()
		for _, protocol := range []string{"h1", "h2"} {
			client := settleClient(t, protocol)
			for _, size := range []int{0, 1, kib64 - 1, kib64, kib64 + 1, 1 << 20} {
				for _, contentType := range []string{"application/json", "application/x-www-form-urlencoded"} {
					for _, chunked := range []bool{false, true} {
						data := uploadBytes(size)
						req, _ := http.NewRequest("POST", server.URL, strings.NewReader(data))
						req.Header.Set("Content-Type", contentType)
						if chunked {
							req.Body, req.ContentLength = io.NopCloser(req.Body), -1
						}
						want := fmt.Sprintf("%d %x", size, sha256.Sum256([]byte(data)))
						if got := uploadAnswer(t, client, req); got != want {
							t.Errorf("%s, %s, %d bytes, chunked %v: got %q, want %q", name, protocol, size, chunked, got, want)
						}
					}
				}
			}
		}
	}
}

func uploadAnswer(t *testing.T, client *http.Client, req *http.Request) string {
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

// TestAGigabyteGoesThroughAsItComes, in memory that does not grow with it.
func TestAGigabyteGoesThroughAsItComes(t *testing.T) {
	leavesNobodyBehind(t)
	const size = 1 << 30
	for _, chunked := range []bool{false, true} {
		s := newSettleZone(t, "cost body_items\nkey form log\nunread_body_cost 7")
		s.serve = func(w http.ResponseWriter, r *http.Request) error {
			n, err := io.Copy(io.Discard, r.Body)
			fmt.Fprint(w, n)
			return err
		}
		req, _ := http.NewRequest("POST", s.listen().URL, io.LimitReader(uploadZeros{}, size))
		req.ContentLength = size
		if chunked {
			req.ContentLength = -1
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		got := uploadAnswer(t, settleClient(t, "h1"), req)
		runtime.ReadMemStats(&after)
		if got != fmt.Sprint(size) {
			t.Errorf("chunked %v: got %s bytes at the upstream, want %d", chunked, got, size)
		}
		if used := (after.TotalAlloc - before.TotalAlloc) >> 20; used > 16 {
			t.Errorf("chunked %v: got %d MiB allocated, want no more than a few", chunked, used)
		}
		s.client = "@client_ip/127.0.0.1"
		s.wantLevel("settled", 7)
	}
}

type uploadZeros struct{}

func (uploadZeros) Read(p []byte) (int, error) { return len(p), nil }

// uploadAsk sends what no client in Go would, and returns the status of the answer
// and whatever comes after its header until the server hangs up.
func uploadAsk(t *testing.T, address, request string) (status int, rest string) {
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
	reader := bufio.NewReader(conn)
	resp, err := http.ReadResponse(reader, nil)
	if err != nil {
		return 0, ""
	}
	body, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body)
}

func TestLiesAboutTheLength(t *testing.T) {
	leavesNobodyBehind(t)
	for _, test := range []struct {
		about, headers, body string
		want                 float64
		atUpstream           string // "-" if it gets an error
	}{
		{"more than is sent", "Content-Length: 100", "[1,2,3]", 30, "-"},
		{"less than is sent", "Content-Length: 5", "[1,2]3]", 2, "[1,2]"},
		{"chunks that break off", "Transfer-Encoding: chunked", "3\r\n[1,\r\n", 30, "-"},
		{"a chunk that breaks off", "Transfer-Encoding: chunked", "9\r\n[1,", 30, "-"},
		{"a chunk of no size", "Transfer-Encoding: chunked", "x\r\n[1,", 30, "-"},
		{"a chunk of any size", "Transfer-Encoding: chunked", "fffffffffffffffff\r\n[1,", 30, "-"},
		{"many chunks", "Transfer-Encoding: chunked", "1\r\n[\r\n1\r\n1\r\n1\r\n]\r\n0\r\n\r\n", 1, "[1]"},
		{"chunks with extensions and trailers", "Transfer-Encoding: chunked\r\nTrailer: X-A", "3;x=y\r\n[1]\r\n0\r\nX-A: b\r\n\r\n", 1, "[1]"},
	} {
		t.Run(test.about, func(t *testing.T) {
			s := newSettleZone(t, "cost body_items\nunread_body_cost 30")
			upstream := make(chan string, 1)
			s.serve = func(w http.ResponseWriter, r *http.Request) error {
				body, err := io.ReadAll(r.Body)
				if err != nil {
					body = []byte("-")
				}
				upstream <- string(body)
				return nil
			}
			uploadAsk(t, s.listen().Listener.Addr().String(), "POST / HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n"+test.headers+"\r\n\r\n"+test.body)
			if got := <-upstream; got != test.atUpstream {
				t.Errorf("got %q at the upstream, want %q", got, test.atUpstream)
			}
			s.wantLevel("settled", test.want)
		})
	}
}

func TestABodyThatNeverEnds(t *testing.T) {
	leavesNobodyBehind(t)
	for _, protocol := range []string{"h1", "h2"} {
		for _, reads := range []int64{0, 10 << 20} { // of the upstream
			s := newSettleZone(t, "cost body_items\nunread_body_cost 30")
			s.serve = func(w http.ResponseWriter, r *http.Request) error {
				n, err := io.CopyN(io.Discard, r.Body, reads)
				if n != reads {
					t.Errorf("%s: got %d bytes at the upstream and %v, want %d", protocol, n, err, reads)
				}
				w.WriteHeader(http.StatusTeapot)
				return nil
			}
			req, _ := http.NewRequest("POST", s.listen().URL, io.NopCloser(uploadZeros{}))
			// h1 clients may not get to see the answer, as they are still sending.
			resp, err := settleClient(t, protocol).Do(req)
			if err == nil {
				resp.Body.Close()
			}
			if protocol == "h2" && (err != nil || resp.StatusCode != http.StatusTeapot) {
				t.Errorf("%s: got %v, %v, want 418", protocol, resp, err)
			}
			s.wantLevel("settled", 30)
		}
	}
}

func TestExpectContinueIsAnsweredWhenTheBodyIsWanted(t *testing.T) {
	s := newSettleSite(t, `throttle {
		zone items {
			capacity 3
			leak 1/d
			cost body_items
		}
	}
	settle_upstream`)
	s.serve = settleSays(200)
	server := s.listen()
	for i, test := range []struct{ first, last int }{{100, 200}, {0, 429}} {
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprint(conn, "POST / HTTP/1.1\r\nHost: example.com\r\nExpect: 100-continue\r\nContent-Length: 7\r\n\r\n")
		reader := bufio.NewReader(conn)
		if test.first != 0 {
			line, err := reader.ReadString('\n')
			if want := fmt.Sprintf("HTTP/1.1 %d ", test.first); !strings.HasPrefix(line, want) {
				t.Fatalf("request %d: got %q, %v, want %s", i+1, line, err, want)
			}
			reader.ReadString('\n')
			fmt.Fprint(conn, "[1,2,3]")
		}
		resp, err := http.ReadResponse(reader, nil)
		if err != nil || resp.StatusCode != test.last {
			t.Errorf("request %d: got %v, %v, want %d and nothing before", i+1, resp, err, test.last)
		}
	}
}

// TestTheSitesOwnBoundOnBodiesHolds: what request_body says reaches those who
// read the body after us.
func TestTheSitesOwnBoundOnBodiesHolds(t *testing.T) {
	leavesNobodyBehind(t)
	for _, test := range []struct {
		length int
		want   int
		level  float64
	}{{10, 200, 1}, {2000, 413, 0}, {-1, 413, 30}} {
		s := newSettleSite(t, `request_body {
			max_size 1000
		}
		throttle {
			zone settled {
				capacity 1000
				leak 1/d
				cost body_items
				unread_body_cost 30
			}
		}
		settle_upstream`)
		var failed error
		s.serve = func(_ http.ResponseWriter, r *http.Request) error {
			_, failed = io.Copy(io.Discard, r.Body)
			return failed
		}
		size := test.length
		if size < 0 {
			size = 2000
		}
		w := s.post(strings.NewReader(bodyCostRows(1, size)[:size]), test.length)
		if w.Code != test.want {
			t.Errorf("length %d: got %v, want %v", test.length, w.Code, test.want)
		}
		if _, byValue := failed.(caddyhttp.HandlerError); test.length < 0 && !byValue { // Caddy looks for no other form of it
			t.Errorf("got the error %T at the upstream, want Caddy's own", failed)
		}
		s.wantLevel("settled", test.level)
	}
}
