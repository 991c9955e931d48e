package redisstore

import (
	"errors"
	"sync/atomic"
)

// What no command of ours and no reply to one comes near to.
const (
	longestLine = 64 << 10
	longestText = 16 << 20
	mostParts   = 64 << 10
	deepest     = 8
)

var errFrame = errors.New("reading from redis: got what is not its protocol")

// frames counts the messages in one direction of a connection, as RESP2 and
// RESP3 frame them, and understands no more of them. What is not framed well is
// an error, whatever a more generous reader might make of it.
type frames struct {
	complete atomic.Uint64 // messages, pushes apart
	pushes   uint64

	kind   byte // of the line that is read; 0 where one begins
	line   int  // its bytes so far
	number int  // what they say
	minus  bool
	last   byte

	skip  int   // bytes left of a text and its line end
	parts []int // left of each array that is open
	push  bool  // the message is one
}

// feed goes on with more bytes.
func (f *frames) feed(b []byte) error {
	for len(b) > 0 {
		if f.skip > 0 {
			n := min(f.skip, len(b))
			if f.skip -= n; f.skip == 0 {
				f.end()
			}
			b = b[n:]
			continue
		}
		c := b[0]
		b = b[1:]
		if f.kind == 0 {
			f.kind, f.line, f.number, f.minus, f.last = c, 0, 0, false, 0
			continue
		}
		if f.line++; f.line > longestLine {
			return errFrame
		}
		if c != '\n' {
			if err := f.read(c); err != nil {
				return err
			}
			f.last = c
			continue
		}
		if f.last != '\r' {
			return errFrame
		}
		if err := f.endLine(); err != nil {
			return err
		}
	}
	return nil
}

// read takes in a byte of a line.
func (f *frames) read(c byte) error {
	switch f.kind {
	case '+', '-', ':', ',', '(', '_', '#':
		return nil
	}
	switch {
	case f.last == '\r':
		return errFrame
	case c == '\r':
	case c == '-' && f.line == 1:
		f.minus = true
	case '0' <= c && c <= '9' && f.number <= longestText:
		f.number = 10*f.number + int(c-'0')
	default:
		return errFrame
	}
	return nil
}

// endLine acts upon a line, which is at least its two end bytes long.
func (f *frames) endLine() error {
	kind := f.kind
	f.kind = 0
	if kind == '>' {
		if len(f.parts) > 0 {
			return errFrame
		}
		f.push = true
	}
	length := f.line - 2
	switch kind {
	case '+', '-', ':', ',', '(':
		f.end()
		return nil
	case '_', '#':
		if kind == '_' && length != 0 || kind == '#' && length != 1 {
			return errFrame
		}
		f.end()
		return nil
	}
	null := f.minus && f.number == 1 && length == 2 && (kind == '$' || kind == '*')
	switch {
	case null:
		f.end()
		return nil
	case length == 0 || f.minus:
		return errFrame
	}
	switch kind {
	case '$', '=', '!':
		if f.number > longestText {
			return errFrame
		}
		f.skip = f.number + 2
		return nil
	case '*', '~', '>', '%':
		return f.open(kind)
	}
	return errFrame
}

// open begins an array.
func (f *frames) open(kind byte) error {
	n := f.number
	if kind == '%' {
		n *= 2
	}
	if n > mostParts || len(f.parts) == deepest {
		return errFrame
	}
	if n == 0 {
		f.end()
		return nil
	}
	f.parts = append(f.parts, n)
	return nil
}

// end ends a text, a line that is all of its message, or an array.
func (f *frames) end() {
	for len(f.parts) > 0 {
		top := len(f.parts) - 1
		if f.parts[top]--; f.parts[top] > 0 {
			return
		}
		f.parts = f.parts[:top]
	}
	if f.push {
		f.push = false
		f.pushes++
		return
	}
	f.complete.Add(1)
}
