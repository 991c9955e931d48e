package body

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// burstBody sends some bytes at a time.
type burstBody struct {
	left, size int
	each       time.Duration
}

func (b *burstBody) Read(p []byte) (int, error) {
	time.Sleep(b.each)
	if b.left == 0 {
		return 0, io.EOF
	}
	n := min(b.size, b.left, len(p))
	copy(p, strings.Repeat("x", n))
	b.left -= n
	return n, nil
}

func TestAClientMustKeepThePaceWhileItsBodyIsRead(t *testing.T) {
	const second = time.Second
	for _, test := range []struct {
		name   string
		body   burstBody
		pauses time.Duration // of the upstream before each read
		free   bool
		slow   bool
		after  time.Duration // it was cut off
	}{
		{"a byte a second", burstBody{1000, 1, second}, 0, false, true, slowest},
		{"as little as is wanted", burstBody{100 << 10, 1 << 10, second}, 0, false, false, 0},
		{"a bit less", burstBody{100 << 10, 600, second}, 0, false, true, slowest},
		{"small and slow", burstBody{10, 1, second}, 0, false, false, 0},
		{"a stall after much", burstBody{20<<10 + 100, 10 << 10, second}, 0, false, false, 0},
		{"an upstream that is slow itself", burstBody{4000, 1000, 0}, 20 * second, false, false, 0},
		{"a conversation", burstBody{40, 1, second}, 0, true, false, 0},
	} {
		for _, protocol := range protocols {
			t.Run(test.name+", "+protocol, func(t *testing.T) {
				slowly(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					paced, began := Pace(r.Context(), w, r), time.Now()
					if test.free {
						paced.Free()
					}
					buffer, n, err := make([]byte, 32<<10), 0, error(nil)
					for err == nil {
						time.Sleep(test.pauses)
						var more int
						more, err = r.Body.Read(buffer)
						n += more
					}
					if slow := errors.Is(err, ErrSlow); slow != test.slow || paced.Slow() != slow || !slow && err != io.EOF {
						t.Errorf("got %d bytes and %v, slow %v, want it slow %v", n, err, paced.Slow(), test.slow)
					}
					if took := time.Since(began); test.slow && (took < test.after || took > test.after+2*second) {
						t.Errorf("got it cut off after %v, want %v", took, test.after)
					}
					if _, err := r.Body.Read(buffer); test.slow && !errors.Is(err, ErrSlow) {
						t.Errorf("reading on: got %v, want %v", err, ErrSlow)
					}
					if w.Header().Set("Connection", "close"); test.slow {
						w.WriteHeader(http.StatusRequestTimeout)
					}
					fmt.Fprint(w, n)
				}), func(t *testing.T, dial func() net.Conn) {
					body, length := test.body, int64(test.body.left)
					if resp, _, err := slowPost(t.Context(), dial(), protocol, &body, length); err != nil || (resp.StatusCode == http.StatusRequestTimeout) != test.slow {
						t.Errorf("got %v, %v, want an answer", resp, err)
					}
				})
			})
		}
	}
}

func TestThePaceIsNoneWhereThereIsNothingToRead(t *testing.T) {
	for _, r := range []*http.Request{{Method: "GET"}, {Method: "CONNECT", Body: io.NopCloser(strings.NewReader("x")), ContentLength: -1}} {
		if paced := Pace(t.Context(), nil, r); paced != nil || paced.Slow() {
			t.Errorf("%s: got a pace, want none", r.Method)
		}
	}
	r := &http.Request{Method: "POST", Body: io.NopCloser(strings.NewReader("x")), ContentLength: 1}
	if first := Pace(t.Context(), nil, r); first == nil || first != Pace(t.Context(), nil, r) {
		t.Error("got another pace by the second handler, want the same")
	}
}
