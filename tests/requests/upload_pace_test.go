package requests

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

// TestSlowUploadsHoldNoSlot: while uploads that send a byte a second are under way, from one
// address and from many, with and without share, everybody else is served, and no slot or place
// in the queue is taken.
func TestSlowUploadsHoldNoSlot(t *testing.T) {
	for _, test := range []struct {
		name, options    string
		uploads, sources int
		size, first      int // what they say that they send, and what they send at once
	}{
		{"in order of arrival", "wait 5s", 14, 3, 200_000, 1},
		{"share", "share", 14, 3, 200_000, 1},
		{"beyond the memory of one", "share", 14, 14, 3 << 20, 1<<20 + 4<<10},
		{"at the last byte", "share", 14, 2, 1 << 20, 1<<20 - 100},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			up := system.StartUpstream(t, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
			port := servertest.FreePort(t)
			c := system.StartCaddy(t, system.Config{Sites: fmt.Sprintf("http://:%d {\nin_flight pages 5 {\n%s\n}\nreverse_proxy %s\n}", port, test.options, up.Address)})
			u := &slowUploads{address: fmt.Sprintf("127.0.0.1:%d", port), sent: make(chan struct{}, test.uploads), done: make(chan struct{})}
			u.begin(test.uploads, test.sources, test.size, test.first)
			defer u.all.Wait()
			defer close(u.done)
			for range test.uploads {
				<-u.sent
			}
			for range 10 {
				check.Equal(t, system.NewVisitor(t, "h1").Get(t, "http://"+u.address).Status, http.StatusOK)
			}
			system.Eventually(t, "no slot and no place to be taken", func() bool { return c.Served(t, "pages")+c.Waiting(t, "pages") == 0 })
			check.Equal(t, up.Seen(), 10, "requests at the upstream, want only the 10 of the visitor")
		})
	}
}

// TestShutdownDelay: until it is over, bodies are received, and requests wait for slots.
func TestShutdownDelay(t *testing.T) {
	t.Parallel()
	up := system.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		_, _ = w.Write(text)
	})
	port := servertest.FreePort(t)
	c := system.StartCaddy(t, system.Config{Grace: "10s\nshutdown_delay 1h", Sites: fmt.Sprintf("http://:%d {\nin_flight php 1 {\nwait 1m\n}\nreverse_proxy %s\n}", port, up.Address)})
	check.OK(t, c.Cmd.Process.Signal(syscall.SIGTERM))
	c.Shut = true
	t.Cleanup(func() { _ = c.Cmd.Process.Kill() })
	system.Eventually(t, "the delay to begin", func() bool { return strings.Contains(c.Output.String(), "shutdown scheduled") })
	var visits sync.WaitGroup
	defer visits.Wait()
	for n := range 8 {
		visits.Go(func() {
			body := strings.Repeat("x", 1<<(2*n))
			response, err := http.Post(fmt.Sprintf("http://127.0.0.1:%d", port), "text/plain", strings.NewReader(body))
			if err != nil {
				t.Error(err)
				return
			}
			defer response.Body.Close()
			got, err := io.ReadAll(response.Body)
			check.That(t, err == nil && response.StatusCode == http.StatusOK && string(got) == body, "%d bytes: got %d with %d bytes and %v", len(body), response.StatusCode, len(got), err)
		})
	}
}

// slowUploads are uploads of which each sends a byte a second until they are done.
type slowUploads struct {
	address    string
	sent, done chan struct{}
	all        sync.WaitGroup
}

// begin begins n uploads from some addresses, which say that they are size bytes long and
// send the first of them at once.
func (u *slowUploads) begin(n, addresses, size, first int) {
	for i := range n {
		from := &net.TCPAddr{IP: net.IPv4(127, byte(9+i%addresses), 0, 1)} // each of a network of its own
		u.all.Go(func() { u.upload(from, size, first) })
	}
}

func (u *slowUploads) upload(from net.Addr, size, first int) {
	dialer := net.Dialer{LocalAddr: from}
	conn, err := dialer.Dial("tcp", u.address)
	if err != nil {
		u.sent <- struct{}{}
		return
	}
	defer conn.Close()
	_, _ = fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n\r\n", u.address, size)
	_, _ = conn.Write(bytes.Repeat([]byte("x"), first))
	u.sent <- struct{}{}
	for second := time.NewTicker(time.Second); ; {
		select {
		case <-second.C:
			_, _ = conn.Write([]byte("x"))
		case <-u.done:
			return
		}
	}
}
