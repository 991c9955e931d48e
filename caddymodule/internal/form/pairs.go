package form

import "bytes"

// pairs reads a URL-encoded form, or a query string.
type pairs struct {
	r      *Reading
	wanted uint64

	fields  int
	text    []byte // of the name, then of the value
	inValue bool
	is      uint64 // the fields of which it is the value
	skip    bool   // nobody wants what comes up to the next pair
	odd     bool   // the pair is next to a semicolon or has a NUL byte
	escape  int    // how much of %41 there has been
	high    byte
}

func (p *pairs) write(data []byte) {
	for i := 0; i < len(data); i++ {
		if p.skip {
			n := bytes.IndexByte(data[i:], '&')
			if n < 0 {
				n = len(data) - i
			}
			if semicolon := bytes.IndexByte(data[i:i+n], ';'); semicolon >= 0 {
				n = semicolon
			}
			if i += n; i == len(data) {
				return
			}
		}
		c := data[i]
		if p.escape > 0 {
			if p.unescape(c) {
				continue
			}
		}
		switch {
		case c == '&', c == ';':
			if p.odd = p.odd || c == ';'; c == ';' && !p.inValue && len(p.text) > 0 {
				p.named(true) // not all readers split it there
			}
			p.end()
			p.odd = c == ';'
		case c == '=' && !p.inValue:
			p.named(false)
		case c == '%':
			p.escape = 1
		case c == '+':
			p.add(' ')
		case c == 0: // one at the end is none for Rack
			p.odd = true
			p.add(c)
		default:
			p.add(c)
		}
	}
}

// unescape returns false if c is no part of an escaped byte.
func (p *pairs) unescape(c byte) bool {
	digit := unhex(c)
	if digit > 15 {
		p.unread()
		return false
	}
	if p.escape++; p.escape == 2 {
		p.high = digit << 4
		return true
	}
	p.escape = 0
	p.add(p.high | digit)
	return true
}

// unhex returns what a hexadecimal digit stands for, and 16 for all else.
func unhex(c byte) byte {
	switch {
	case '0' <= c && c <= '9':
		return c - '0'
	case 'a' <= c|0x20 && c|0x20 <= 'f':
		return c | 0x20 - 'a' + 10
	}
	return 16
}

func (p *pairs) add(c byte) {
	if p.inValue && len(p.text) == longestValue || !p.inValue && len(p.text) == longestName {
		p.unread()
		return
	}
	p.text = append(p.text, c)
}

// unread gives up a pair that is badly escaped or too long.
func (p *pairs) unread() {
	if p.escape = 0; p.inValue {
		p.r.note(p.is, nil, false)
		p.skip = true
		return
	}
	p.named(true)
}

// named ends the name of a pair.
func (p *pairs) named(cut bool) {
	p.is = p.r.name(p.text, p.wanted, cut)
	p.skip = p.is == 0
	p.inValue, p.text = true, p.text[:0]
}

// end ends a pair, and the form with the last one.
func (p *pairs) end() {
	if p.fields++; p.fields > mostFields {
		p.r.unclear |= p.wanted
	}
	if p.escape > 0 {
		p.unread()
	}
	if !p.inValue {
		p.named(false)
	}
	if !p.skip {
		p.r.note(p.is, p.text, !p.odd)
	}
	p.inValue, p.skip, p.text = false, false, p.text[:0]
}
