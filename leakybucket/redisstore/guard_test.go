package redisstore

import (
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

func TestFramesAreCountedHoweverTheyArrive(t *testing.T) {
	for text, want := range map[string]uint64{
		"":                                    0,
		"+OK\r\n":                             1,
		"+OK":                                 0,
		"-ERR\r\n:5\r\n,1.5\r\n(12\r\n":       4,
		"_\r\n#t\r\n":                         2,
		"$-1\r\n*-1\r\n":                      2,
		"$0\r\n\r\n$3\r\na\r\n\r\n":           2,
		"*0\r\n%0\r\n~0\r\n":                  3,
		"*2\r\n$1\r\na\r\n*1\r\n:1\r\n+x\r\n": 2,
		"%1\r\n+a\r\n*2\r\n:1\r\n:2\r\n":      1,
		"=5\r\ntxt:a\r\n!3\r\nERR\r\n":        2,
		">2\r\n+a\r\n+b\r\n+OK\r\n":           1,
	} {
		for size := 1; size <= max(1, len(text)); size++ {
			var f frames
			for rest := text; rest != ""; {
				n := min(size, len(rest))
				check.OK(t, f.feed([]byte(rest[:n])), "%q in parts of %d", text, size)
				rest = rest[n:]
			}
			check.Need(t, f.complete.Load(), want, "%q in parts of %d: messages", text, size)
		}
	}
}

func TestFramesThatAreWrongAreErrors(t *testing.T) {
	for _, text := range []string{
		"\r\n", "x\r\n", "+OK\n", "$5\n", "$-5\r\n", "$-2\r\n", "$+5\r\n", "$\r\n", "$-\r\n", "*-2\r\n", "%-1\r\n", "~-1\r\n", "$5x\r\n", "$1\r2\r\n",
		"$99999999999\r\n", "*99999999\r\n", "*?\r\n", "$?\r\n", ";4\r\n", "|1\r\n", "*1\r\n>1\r\n", "_x\r\n", "#\r\n", "#tt\r\n",
		strings.Repeat("*1\r\n", deepest+1), "+" + strings.Repeat("x", largestMessage), "$33554432\r\n", "*1048577\r\n", "%524289\r\n",
	} {
		var f frames
		check.That(t, f.feed([]byte(text)) != nil, "%.40q: got no error", text)
	}
}

// endless repeats a text, after a beginning.
type endless struct{ begin, text, rest string }

func (e *endless) Read(p []byte) (n int, err error) {
	for n < len(p) {
		if e.rest == "" {
			e.rest, e.begin = e.begin+e.text, ""
		}
		copied := copy(p[n:], e.rest)
		n, e.rest = n+copied, e.rest[copied:]
	}
	return n, nil
}

// A server may reply without end. Of what guards pass on, a client keeps one message.
func TestAnEndlessReplyEndsTheConnection(t *testing.T) {
	for name, reply := range map[string]*endless{
		"texts":        {begin: "*60000\r\n", text: "$1000000\r\n" + strings.Repeat("x", 1_000_000) + "\r\n"},
		"long texts":   {begin: "*60000\r\n", text: "$15000000\r\n" + strings.Repeat("x", 15_000_000) + "\r\n"},
		"arrays":       {begin: "*60000\r\n", text: "*1000\r\n" + strings.Repeat(":1\r\n", 1000)},
		"short arrays": {begin: "*1000000\r\n", text: "*1\r\n*1\r\n:1\r\n"},
		"numbers":      {begin: "*1048000\r\n", text: ":1\r\n"},
		"a line":       {begin: "+", text: "x"},
	} {
		t.Run(name, func(t *testing.T) {
			server, err := net.Listen("tcp", "127.0.0.1:0")
			check.OK(t, err)
			defer server.Close()
			go func() {
				if conn, err := server.Accept(); err == nil {
					_, _ = io.Copy(conn, reply)
					_ = conn.Close()
				}
			}()
			conn, err := net.Dial("tcp", server.Addr().String())
			check.OK(t, err)
			g := &guard{Conn: conn}
			defer g.Close()
			check.Must(g.Write([]byte("*1\r\n$4\r\nPING\r\n")))(t)
			read, err := io.Copy(io.Discard, g)
			check.That(t, errors.Is(err, errFrame) && read <= largestMessage, "got %d bytes and error %v, want an error within %d", read, err, largestMessage)
			_, err = conn.Read(make([]byte, 1))
			check.That(t, errors.Is(err, net.ErrClosed), "got error %v, want the connection closed", err)
		})
	}
}
