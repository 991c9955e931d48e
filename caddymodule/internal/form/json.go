package form

import (
	"bytes"
	"math/bits"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// document reads JSON: one document, or several one after another.
type document struct {
	r      *Reading
	want   expected
	inside []level
	docs   int

	place  place  // of the value that comes, among names
	on     uint64 // the arrays whose path leads to it
	is     uint64 // the fields of which it is the value
	text   []byte // of a name or value, if it is kept
	keep   bool
	isName bool
	escape bool // the last byte was a backslash
}

// A level is an object or array that has been opened.
type level struct {
	place
	object             bool
	items, each, named uint64 // arrays: this is it; # comes next on the path; a name does
	seen               uint64 // those that a name has led to
}

// expected is what comes next.
type expected uint8

const (
	aValue expected = iota
	firstValue
	aName
	firstName
	aColon
	aComma
	inString
	inScalar
)

func newDocument(r *Reading) *document {
	return &document{r: r, place: place{alive: r.plan.fields}, on: r.plan.all() &^ r.plan.fields}
}

// scalars are the bytes of numbers, true, false and null.
var scalars = func() (table [256]bool) {
	for _, c := range []byte("0123456789+-.eEtrufalsn") {
		table[c] = true
	}
	return table
}()

func (d *document) write(data []byte) {
	for i := 0; i < len(data); {
		switch d.want {
		case inString:
			i += d.inString(data[i:])
			continue
		case inScalar:
			from := i
			for i < len(data) && scalars[data[i]] {
				i++
			}
			d.append(data[from:i])
			if i < len(data) {
				d.scalarEnds()
			}
			continue
		}
		c := data[i]
		if i++; c == ' ' || c == '\n' || c == '\r' || c == '\t' {
			continue
		}
		if !d.token(c) {
			d.r.unclear = d.r.plan.all()
			return
		}
		if d.want == inScalar {
			i-- // it is part of it
		}
	}
}

// token takes a byte that is neither in a string nor in a scalar. It returns false if it
// does not belong there.
func (d *document) token(c byte) bool {
	switch d.want {
	case aComma:
		if len(d.inside) > 0 {
			top := &d.inside[len(d.inside)-1]
			switch {
			case c == '}' && top.object, c == ']' && !top.object:
				d.inside = d.inside[:len(d.inside)-1]
			case c != ',':
				return false
			case top.object:
				d.want = aName
			default:
				d.want = aValue
			}
			return true
		}
	case aColon:
		d.want = aValue
		return c == ':'
	case aName, firstName:
		if c == '"' {
			top := &d.inside[len(d.inside)-1]
			d.begin(inString, top.alive|top.named|top.each|top.items != 0)
			d.isName = true
			return true
		}
		if c == '}' && d.want == firstName {
			d.inside, d.want = d.inside[:len(d.inside)-1], aComma
			return true
		}
		return false
	case firstValue:
		if c == ']' {
			d.inside, d.want = d.inside[:len(d.inside)-1], aComma
			return true
		}
	}
	return d.value(c)
}

// value takes the first byte of a value.
func (d *document) value(c byte) bool {
	switch top := len(d.inside) - 1; {
	case top < 0:
		if d.docs++; d.docs > 1 {
			d.r.unclear |= d.r.plan.all() &^ d.r.plan.fields
		}
		d.place, d.on = place{alive: d.r.plan.fields}, d.r.plan.all()&^d.r.plan.fields
	case !d.inside[top].object:
		d.place, d.on = d.inside[top].place, d.inside[top].each
		d.count(d.inside[top].items)
	}
	d.is = d.r.plan.names.at(d.place) &^ d.r.unclear
	switch {
	case c == '"':
		d.begin(inString, d.is != 0)
	case c == '{', c == '[':
		d.r.unclear |= d.is
		return d.open(c == '{')
	case scalars[c]:
		d.begin(inScalar, d.is != 0)
	default:
		return false
	}
	return true
}

func (d *document) begin(what expected, keep bool) {
	d.want, d.keep, d.isName, d.text = what, keep, false, d.text[:0]
}

func (d *document) count(arrays uint64) {
	for ; arrays != 0; arrays &= arrays - 1 {
		d.r.items[bits.TrailingZeros64(arrays)]++
	}
}

func (d *document) open(object bool) bool {
	if len(d.inside) == mostLevels {
		return false
	}
	l := level{place: d.place, object: object}
	for on := d.on; on != 0; on &= on - 1 {
		array := bits.TrailingZeros64(on)
		switch path := d.r.plan.wanted[array].keys; {
		case len(path) == len(d.inside):
			l.items |= 1 << array
		case path[len(d.inside)] == "#":
			l.each |= 1 << array
		default:
			l.named |= 1 << array
		}
	}
	if d.inside, d.want = append(d.inside, l), firstValue; object {
		d.want = firstName
	}
	return true
}

// inString takes bytes of a string, and returns how many.
func (d *document) inString(data []byte) (n int) {
	if d.escape {
		d.escape = false
		d.append(data[:1])
		return 1
	}
	n = toQuote(data)
	d.append(data[:n])
	if n == len(data) {
		return n
	}
	if d.escape = data[n] == '\\'; d.escape {
		d.append(data[n : n+1])
		return n + 1
	}
	d.want = aComma
	switch {
	case d.isName:
		d.want = aColon
		d.named()
	case d.keep:
		value, valid := unescape(d.text)
		d.r.note(d.is, value, valid && len(d.text) <= longestValue)
	}
	return n + 1
}

// append keeps up to one byte more than is read.
func (d *document) append(data []byte) {
	if d.keep {
		d.text = append(d.text, data[:min(len(data), longestValue+1-len(d.text))]...)
	}
}

// toQuote returns where the next quote or backslash is.
func toQuote(data []byte) int {
	for from := 0; from < len(data); {
		window := data[from:min(len(data), from+16)]
		for i, c := range window {
			if c == '"' || c == '\\' {
				return from + i
			}
		}
		from += len(window)
		window = data[from:min(len(data), from+1024)]
		to := bytes.IndexByte(window, '"')
		if to < 0 {
			to = len(window)
		}
		if backslash := bytes.IndexByte(window[:to], '\\'); backslash >= 0 {
			to = backslash
		}
		if from += to; to < len(window) {
			return from
		}
	}
	return len(data)
}

// named takes the name of a value. The readers of JSON compare names as they are, so one
// that is too long is none of ours.
func (d *document) named() {
	d.place, d.on = place{}, 0
	if !d.keep || len(d.text) > longestName {
		return
	}
	top := &d.inside[len(d.inside)-1]
	name, valid := unescape(d.text)
	letters, inUTF8 := appendLetters(d.r.room[:0], name)
	switch {
	case !valid || !inUTF8:
		d.r.unclear |= top.alive | top.items | top.each | top.named
		return
	case isIndex(letters):
		d.place = top.place
		d.count(top.items)
	default:
		d.place, _ = d.r.plan.names.walk(top.place, letters)
	}
	d.on = top.each
	for arrays := top.named; arrays != 0; arrays &= arrays - 1 {
		array := bits.TrailingZeros64(arrays)
		if d.r.plan.wanted[array].keys[len(d.inside)-1] == string(letters) {
			d.on |= 1 << array
		}
	}
	d.r.unclear |= top.seen & d.on &^ top.each
	top.seen |= d.on
}

func (d *document) scalarEnds() {
	d.want = aComma
	if d.keep {
		d.r.note(d.is, d.text, plainNumber(d.text))
	}
}

// plainNumber reports whether a number is written in the same way by whoever reads it.
func plainNumber(text []byte) bool {
	digits := bytes.TrimPrefix(text, []byte("-"))
	if len(digits) == 0 || len(digits) > 15 || digits[0] == '0' && len(text) > 1 {
		return false
	}
	return isIndex(digits)
}

func (d *document) end() {
	if d.want == inScalar {
		d.scalarEnds()
	}
	if len(d.inside) > 0 || d.want != aComma && d.docs > 0 {
		d.r.unclear = d.r.plan.all()
	}
}

// unescape decodes a string where it stands.
func unescape(text []byte) (_ []byte, valid bool) {
	out := text[:0]
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case c < ' ':
			return nil, false
		case c != '\\':
			out = append(out, c)
			continue
		case i+1 == len(text):
			return nil, false
		}
		i++
		if text[i] == 'u' {
			r := hex4(text[i+1:])
			i += 4
			if utf16.IsSurrogate(r) && i+2 < len(text) && text[i+1] == '\\' && text[i+2] == 'u' {
				r = utf16.DecodeRune(r, hex4(text[i+3:]))
				i += 6
			}
			if r < 0 || utf16.IsSurrogate(r) || r == utf8.RuneError {
				return nil, false
			}
			out = utf8.AppendRune(out, r)
			continue
		}
		at := strings.IndexByte(`"\/bfnrt`, text[i])
		if at < 0 {
			return nil, false
		}
		out = append(out, "\"\\/\b\f\n\r\t"[at])
	}
	return out, utf8.Valid(out)
}

// hex4 returns the rune that four hexadecimal digits stand for, or -1.
func hex4(text []byte) (r rune) {
	if len(text) < 4 {
		return -1
	}
	for _, c := range text[:4] {
		if unhex(c) > 15 {
			return -1
		}
		r = r<<4 | rune(unhex(c))
	}
	return r
}
