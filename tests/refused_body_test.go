package tests

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestRefusedRequestsWithSmallBodiesShareAConnection: five in one write get five answers,
// as nginx gives them. A body that is longer, or has not arrived, ends the connection.
func TestRefusedRequestsWithSmallBodiesShareAConnection(t *testing.T) {
	t.Parallel()
	port := freePort(t)
	startCaddy(t, config{sites: fmt.Sprintf(`
http://:%d {
	throttle {
		zone closed {
			limit 1 1/d
		}
	}
	respond ok
}`, port)})
	first, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/", port)) // all that fits
	if err != nil {
		t.Fatal(err)
	}
	first.Body.Close()
	for _, test := range []struct{ length, sent, times, want int }{
		{30, 30, 5, 5},
		{3000, 3000, 5, 5}, // bodies that lie across the reads of net/http
		{64 << 10, 64 << 10, 1, 1},
		{64<<10 + 1, 64<<10 + 1, 5, 1},
		{30, 10, 1, 1},
	} {
		name := fmt.Sprintf("%d of %d bytes, %d times", test.sent, test.length, test.times)
		conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		request := fmt.Sprintf("POST / HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Length: %d\r\n\r\n%s", port, test.length, strings.Repeat("x", test.sent))
		began := time.Now()
		go func() { _, _ = io.WriteString(conn, strings.Repeat(request, test.times)) }()
		reader, got, closing := bufio.NewReader(conn), 0, false
		for !closing && got < test.times {
			resp, err := http.ReadResponse(reader, nil)
			if err != nil || resp.StatusCode != http.StatusTooManyRequests {
				t.Fatalf("%s: got %v, %v after %d answers, want 429", name, resp, err, got)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			got, closing = got+1, resp.Close
		}
		if wantClose := test.sent < test.length || test.length > 64<<10; got != test.want || closing != wantClose {
			t.Errorf("%s: got %d answers, closing %v, want %d, %v", name, got, closing, test.want, wantClose)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("%s: got the answers after %v, want them at once", name, took)
		}
	}
}
