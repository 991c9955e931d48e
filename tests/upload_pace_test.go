package tests

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"
)

const paceSite = `
http://:%d {
	throttle {
		zone pages {
			in_flight 5 wait 5s %s {
				share
			}
		}
	}
	reverse_proxy %s
}`

// TestNobodyHoldsSlotsByAByteASecond: from 20 s after an attack has begun, everybody else is
// served within 5 s, and on a busy machine at all.
func TestNobodyHoldsSlotsByAByteASecond(t *testing.T) {
	t.Parallel()
	most := startTime
	if long() {
		most = 5 * time.Second
	}
	for _, test := range []struct {
		name, options string
		begin         func(u *slowUploads)
		lasts         time.Duration
	}{
		{"no buffer", "", func(u *slowUploads) { u.begin(8, 2, 200_000, 1) }, 40 * time.Second},
		{"longer than the buffer", "buffer 1MiB", func(u *slowUploads) { u.begin(6, 2, 3<<20, 1<<20+4<<10) }, 40 * time.Second},
		{"memory that is full", "buffer 8MiB", func(u *slowUploads) {
			u.begin(8, 1, 8<<20, 8<<20-100)
			u.begin(330, 3, 5000, 1)
		}, 40 * time.Second},
		{"longer than the patience", "buffer 8MiB", func(u *slowUploads) { u.begin(8, 2, 5000, 1) }, 360 * time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.lasts > time.Minute && !long() {
				t.Skip("SKIPPED: it takes minutes; TEST_LONG=1 runs it")
			}
			t.Parallel()
			up := startUpstream(t, func(_ http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				time.Sleep(50 * time.Millisecond)
			})
			port := freePort(t)
			startCaddy(t, config{sites: fmt.Sprintf(paceSite, port, test.options, up.address)})
			u := &slowUploads{address: fmt.Sprintf("127.0.0.1:%d", port), done: make(chan struct{})}
			began := time.Now()
			test.begin(u)
			defer u.all.Wait()
			defer close(u.done)
			time.Sleep(20 * time.Second)
			for time.Since(began) < test.lasts {
				v, at := newVisitor(t, "h1"), time.Now()
				a := v.get(t, "http://"+u.address)
				for a.status == http.StatusServiceUnavailable && time.Since(at) < most {
					time.Sleep(500 * time.Millisecond)
					a = v.get(t, "http://"+u.address)
				}
				if took := time.Since(at); a.status != http.StatusOK || took > most {
					t.Errorf("after %v: got %d after %v, want 200 within %v", at.Sub(began).Round(time.Second), a.status, took, most)
				}
				time.Sleep(time.Second)
			}
			timeouts, others := u.counts()
			t.Logf("%d uploads were answered 408, and %d otherwise or not at all", timeouts, others)
			if timeouts == 0 {
				t.Error("got no upload answered 408, want some")
			}
		})
	}
}

// slowUploads are uploads of which each sends a byte a second until it is cut off.
type slowUploads struct {
	address string
	done    chan struct{}
	all     sync.WaitGroup

	mu               sync.Mutex
	timeouts, others int
	addresses        int
}

func (u *slowUploads) counts() (timeouts, others int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.timeouts, u.others
}

// begin begins n uploads from some addresses, which say that they are size bytes long and
// send the first of them at once.
func (u *slowUploads) begin(n, addresses, size, first int) {
	for i := range n {
		from := &net.TCPAddr{IP: net.IPv4(127, 9, byte(u.addresses), byte(1+i%addresses))}
		u.all.Go(func() { u.upload(from, size, first) })
	}
	u.addresses++
}

func (u *slowUploads) upload(from net.Addr, size, first int) {
	dialer := net.Dialer{LocalAddr: from}
	conn, err := dialer.Dial("tcp", u.address)
	if err != nil {
		return
	}
	defer conn.Close()
	answered := make(chan string, 1)
	go func() {
		answer := make([]byte, 12)
		_, _ = io.ReadFull(conn, answer)
		answered <- string(answer)
	}()
	_ = conn.SetWriteDeadline(time.Now().Add(time.Minute))
	_, _ = fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n\r\n", u.address, size)
	_, _ = conn.Write(bytes.Repeat([]byte("x"), first))
	for second := time.NewTicker(time.Second); ; {
		select {
		case <-second.C:
			_ = conn.SetWriteDeadline(time.Now().Add(time.Minute))
			_, _ = conn.Write([]byte("x"))
		case answer := <-answered:
			u.mu.Lock()
			defer u.mu.Unlock()
			if answer == "HTTP/1.1 408" {
				u.timeouts++
			} else {
				u.others++
			}
			return
		case <-u.done:
			return
		}
	}
}
