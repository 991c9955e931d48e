package redisstore

import (
	"bytes"
	"errors"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
)

// Limits that neither a command of ours nor a reply to one comes near. What
// exceeds them ends the connection.
const (
	// largestMessage is how much memory a message may take: its bytes, and partSize for
	// each part of an array, for which rueidis makes room when the array begins. A registry
	// that has as much as it may takes 41 MiB.
	largestMessage = 64 << 20
	partSize       = 64

	deepest = 8
)

var (
	errFrame   = errors.New("reading from redis: got what is not its protocol")
	errUnasked = errors.New("reading from redis: got a reply to nothing that was asked")
)

// A guard stands between rueidis and a connection. A peer that sends a reply
// nobody asked for, or announces a text of minus five or of 2^60 bytes, makes
// rueidis panic in a goroutine of its own, which ends the whole process. One that
// never ends a reply fills the memory. A guard ends the connection instead.
type guard struct {
	net.Conn
	asked, answered frames

	// pushes allows messages that nobody asked for. Sentinels send them.
	pushes bool
}

// Write counts commands before they can be answered.
func (g *guard) Write(b []byte) (int, error) {
	if err := g.asked.feed(b); err != nil {
		return 0, err
	}
	return g.Conn.Write(b)
}

func (g *guard) Read(b []byte) (int, error) {
	n, err := g.Conn.Read(b)
	fault := g.answered.feed(b[:n])
	if fault == nil && (g.answered.complete.Load() > g.asked.complete.Load() || g.answered.pushes > 0 && !g.pushes) {
		fault = errUnasked
	}
	if fault != nil {
		_ = g.Close()
		return 0, fault
	}
	return n, err
}

// frames counts the messages in one direction of a connection, in RESP2 and
// RESP3. It checks sizes and nesting, and does not look at what is in them.
type frames struct {
	complete atomic.Uint64 // messages, without pushes
	pushes   uint64

	size  int64  // of the message that is open, as far as it has come or is announced
	line  []byte // the part of a line that has come
	skip  int    // bytes left of a text, with its line end
	parts []int  // left of each array that is open
	push  bool   // the open message is a push
}

// feed goes on with more bytes.
func (f *frames) feed(b []byte) error {
	for len(b) > 0 {
		if f.skip > 0 {
			n := min(f.skip, len(b))
			if b, f.skip = b[n:], f.skip-n; f.skip == 0 {
				f.end()
			}
			continue
		}
		line, rest, whole := bytes.Cut(b, []byte{'\n'})
		if err := f.grow(len(b) - len(rest)); err != nil {
			return err
		}
		if f.line, b = append(f.line, line...), rest; whole {
			if err := f.endLine(); err != nil {
				return err
			}
			f.line = f.line[:0]
		}
	}
	return nil
}

// endLine acts upon a whole line: a kind, a number or a text, and \r.
func (f *frames) endLine() error {
	line, found := bytes.CutSuffix(f.line, []byte{'\r'})
	if !found || len(line) == 0 {
		return errFrame
	}
	kind, text := line[0], string(line[1:])
	number, err := strconv.ParseUint(text, 10, 25)
	n := int(number)
	switch {
	case strings.IndexByte("+-:,(", kind) >= 0,
		kind == '_' && text == "",
		kind == '#' && len(text) == 1,
		(kind == '$' || kind == '*') && text == "-1": // null
		f.end()
	case err != nil:
		return errFrame
	case strings.IndexByte("$=!", kind) >= 0:
		f.skip = n + 2
		return f.grow(f.skip)
	case kind == '%':
		return f.open(2 * n)
	case kind == '*', kind == '~':
		return f.open(n)
	case kind == '>' && len(f.parts) == 0:
		f.push = true
		return f.open(n)
	default:
		return errFrame
	}
	return nil
}

// grow adds n bytes to the size of the message.
func (f *frames) grow(n int) error {
	if f.size += int64(n); f.size > largestMessage {
		return errFrame
	}
	return nil
}

// open begins an array of n parts.
func (f *frames) open(n int) error {
	if n > largestMessage/partSize || len(f.parts) == deepest {
		return errFrame
	}
	if err := f.grow(n * partSize); err != nil {
		return err
	}
	if n == 0 {
		f.end()
		return nil
	}
	f.parts = append(f.parts, n)
	return nil
}

// end ends a part, and with it each array and message whose last part it is.
func (f *frames) end() {
	for len(f.parts) > 0 {
		top := len(f.parts) - 1
		if f.parts[top]--; f.parts[top] > 0 {
			return
		}
		f.parts = f.parts[:top]
	}
	f.size = 0
	if f.push {
		f.push = false
		f.pushes++
		return
	}
	f.complete.Add(1)
}
