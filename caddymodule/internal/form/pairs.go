package form

import (
	"bytes"
	"encoding/hex"
	"unicode/utf8"
)

// pairs reads a URL-encoded form, or a query string.
type pairs struct {
	r      *Reading
	wanted uint64
	loose  bool // few readers take this body for pairs, so they are unclear, and most names are none

	fields  int
	text    []byte // of the name, then of the value, as it came
	inValue bool
	is      uint64 // the fields of which it is the value
	skip    bool   // nobody wants what comes up to the next pair
	odd     bool   // the pair is next to a semicolon
}

func (p *pairs) write(data []byte) {
	for {
		ends, most := "=&;", longestName
		if p.inValue {
			ends, most = "&;", longestValue
		}
		n := firstOf(data, ends)
		if !p.skip {
			p.text = appendUpTo(p.text, data[:n], most)
		}
		if n == len(data) {
			return
		}
		if c := data[n]; c == '=' {
			p.named(false)
		} else {
			if p.odd = p.odd || c == ';'; c == ';' && !p.inValue && len(p.text) > 0 {
				p.named(!p.loose) // not all readers split it there
			}
			p.end()
			p.odd = c == ';'
		}
		data = data[n+1:]
	}
}

// appendUpTo appends to a name or value, up to one byte more than is read of it.
func appendUpTo(text, data []byte, most int) []byte {
	return append(text, data[:min(len(data), most+1-len(text))]...)
}

// named ends the name of a pair.
func (p *pairs) named(cut bool) {
	name, whole := unescaped(p.text)
	cut = cut || !whole || len(p.text) > longestName
	if p.loose { // PHP ends names at a NUL, and leaves out blanks at the beginning and what follows the last ]
		if len(p.text) > longestName && len(bytes.TrimLeft(name, " ")) <= len(name)/2 {
			p.r.unclear |= p.wanted // the name may have been cut
		}
		odd := bytes.IndexFunc(name, func(c rune) bool { return c < ' ' || c == 0x7f || c == utf8.RuneError })
		if odd >= 0 {
			name, cut = name[:odd], name[odd] != 0
		}
		if cut {
			name = name[:bytes.LastIndexByte(name, ']')+1]
		}
		cut = false
	}
	p.is = p.r.name(name, p.wanted, cut, p.loose)
	p.skip, p.inValue, p.text = p.is == 0, true, p.text[:0]
}

// end ends a pair, and the form with the last one.
func (p *pairs) end() {
	if p.fields++; p.fields > mostFields && !p.loose {
		p.r.unclear |= p.wanted
	}
	if !p.inValue && !p.loose { // else it is no pair
		p.named(false)
	}
	if p.inValue && !p.skip {
		plain := !p.odd && !p.loose && len(p.text) <= longestValue && !bytes.ContainsAny(p.text, "\x00#") // a NUL at the end is none for Rack
		value, whole := unescaped(p.text)
		p.r.note(p.is, value, plain && whole)
	}
	p.inValue, p.skip, p.text = false, false, p.text[:0]
}

// unescaped decodes a name or value where it is, up to what is badly escaped.
func unescaped(text []byte) (_ []byte, whole bool) {
	to := text[:0]
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch c {
		case '+':
			c = ' '
		case '%':
			var decoded [1]byte
			if n, err := hex.Decode(decoded[:], text[i+1:min(i+3, len(text))]); n != 1 || err != nil {
				return to, false
			}
			c, i = decoded[0], i+2
		}
		to = append(to, c)
	}
	return to, true
}
