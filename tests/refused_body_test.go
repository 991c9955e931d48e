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
// as nginx gives them. A body that is longer, or has not arrived, ends the connection. So
// it is beside all that may read the body before, or refuses for another reason.
func TestRefusedRequestsWithSmallBodiesShareAConnection(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, throttle, zone string
		status               int
	}{
		{"alone", "", "limit 1 1/d", http.StatusTooManyRequests},
		{"a part is read for the cost", "", "limit 6 1/d\ncost body_bytes 1\nread_body 1KiB", http.StatusTooManyRequests},
		{"delays", "", "limit 2 1/d\ndelay wait 2s", http.StatusTooManyRequests},
		{"slots and a buffer", "", "limit 1 1/d\nin_flight 1 buffer 16KiB", http.StatusTooManyRequests},
		{"an outage", fmt.Sprintf("store redis redis://127.0.0.1:%d", freePort(t)), "limit 1 1/d\non_store_error deny", http.StatusServiceUnavailable},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			port := freePort(t)
			startCaddy(t, config{throttle: test.throttle, sites: fmt.Sprintf(`
http://:%d {
	throttle {
		zone closed {
			%s
		}
	}
	respond ok
}`, port, test.zone)})
			refusedOnOneConnection(t, fmt.Sprintf("127.0.0.1:%d", port), test.status)
		})
	}
}

func refusedOnOneConnection(t *testing.T, address string, status int) {
	first, err := http.Post("http://"+address, "application/x-www-form-urlencoded", strings.NewReader("name=x")) // all that fits
	if err != nil {
		t.Fatal(err)
	}
	first.Body.Close()
	for _, test := range []struct{ length, sent, times, want int }{
		{30, 30, 5, 5},
		{3000, 3000, 5, 5}, // bodies that lie across the reads of net/http
		{16 << 10, 16 << 10, 1, 1},
		{64<<10 + 1, 64<<10 + 1, 5, 1},
		{30, 10, 1, 1},
	} {
		name := fmt.Sprintf("%d of %d bytes, %d times", test.sent, test.length, test.times)
		request := fmt.Sprintf("POST / HTTP/1.1\r\nHost: %s\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: %d\r\n\r\n%s",
			address, test.length, ("name=x&" + strings.Repeat("x", test.length))[:test.sent])
		wantClose := test.sent < test.length || test.length > 64<<10
		got, closing := 0, false
		for range 3 { // the server looks for a body for a millisecond, in which a busy machine may do other things
			if got, closing = answersOnOneConnection(t, address, strings.Repeat(request, test.times), test.times, status); got == test.want && closing == wantClose {
				break
			}
		}
		if got != test.want || closing != wantClose {
			t.Errorf("%s: got %d answers, closing %v, want %d, %v", name, got, closing, test.want, wantClose)
		}
	}
}

// answersOnOneConnection sends requests in one write, and returns how many refusals come until
// the server ends the connection, or has answered all.
func answersOnOneConnection(t *testing.T, address, requests string, times, status int) (got int, closing bool) {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	began := time.Now()
	go func() { _, _ = io.WriteString(conn, requests) }()
	for reader := bufio.NewReader(conn); !closing && got < times; got++ {
		resp, err := http.ReadResponse(reader, nil)
		if err != nil || resp.StatusCode != status {
			t.Fatalf("got %v, %v after %d answers, want %d", resp, err, got, status)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		closing = resp.Close
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("got the answers after %v, want them at once", took)
	}
	return got, closing
}
