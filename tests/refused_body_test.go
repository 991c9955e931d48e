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
// as nginx gives them. A body that is too long ends the connection. So it is beside all that
// may read the body before, or refuses for another reason.
func TestRefusedRequestsWithSmallBodiesShareAConnection(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, throttle, zone string
		status               int
	}{
		{"alone", "", "limit 1 1/d", http.StatusTooManyRequests},
		{"a part is read for the cost", "", "limit 6 1/d\ncost body_bytes 1\nread_body 1KiB", http.StatusTooManyRequests},
		{"delays", "", "limit 2 1/d\ndelay wait 2s", http.StatusTooManyRequests},
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
	for _, test := range []struct {
		length, times int
		closing       bool
	}{{30, 5, false}, {3000, 5, false}, {16 << 10, 5, false}, {64<<10 + 1, 5, false}, {300 << 10, 1, true}} {
		request := fmt.Sprintf("POST / HTTP/1.1\r\nHost: %s\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: %d\r\n\r\n%s",
			address, test.length, ("name=x&" + strings.Repeat("x", test.length))[:test.length])
		if got, closing := answersOnOneConnection(t, address, strings.Repeat(request, test.times), test.times, status); got != test.times || closing != test.closing {
			t.Errorf("%d bytes, %d times: got %d answers, closing %v, want %v", test.length, test.times, got, closing, test.closing)
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
	_ = conn.SetDeadline(time.Now().Add(startTime))
	go func() { _, _ = io.WriteString(conn, requests) }()
	for reader := bufio.NewReader(conn); !closing && got < times; got++ {
		resp, err := http.ReadResponse(reader, nil)
		if err != nil || resp.StatusCode != status {
			t.Fatalf("got %v, %v after %d answers, want %d", resp, err, got, status)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		closing = resp.Close
	}
	return got, closing
}
