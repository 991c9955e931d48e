package form

import (
	"bytes"
	"math/bits"
	"strconv"
	"strings"
	"unicode/utf8"
)

// document reads JSON: one document, or several one after another.
type document struct {
	r      *Reading
	want   expected
	inside []level // what has been opened, below a level whose elements are documents

	place  place  // of the value that comes, among names
	bare   place  // likewise, without the first key
	on     uint64 // the arrays whose path leads to it
	is     uint64 // the fields of which it is the value
	text   []byte // of a name or value, if it is kept
	keep   bool
	isName bool
	escape bool // the last byte was a backslash
}

// A level is an object or array.
type level struct {
	place
	bare               place
	object             bool
	items, each, named uint64 // arrays: this is it; # comes next on the path; a name does
	n                  int    // how many elements it has
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
			i += d.inScalar(data[i:])
			continue
		}
		c := data[i]
		i++
		good := true
		switch c {
		case ' ', '\n', '\r', '\t':
		case ',':
			good = d.want == aComma
			if d.want = aValue; d.top().object {
				d.want = aName
			}
		case ':':
			good = d.want == aColon
			d.want = aValue
		case '{', '[':
			good = d.value() && d.open(c == '{')
		case '}':
			good = (d.want == aComma || d.want == firstName) && d.top().object && d.close()
		case ']':
			good = (d.want == aComma || d.want == firstValue) && !d.top().object && d.close()
		case '"':
			if d.want == aName || d.want == firstName {
				top := d.top()
				d.isName, d.text = true, d.text[:0]
				d.keep = top.alive|top.bare.alive|top.named|top.each|top.items != 0
			} else {
				good = d.value()
			}
			d.want = inString
			i += d.inString(data[i:])
		default:
			good = scalars[c] && d.value()
			d.want = inScalar
			i += d.inScalar(data[i-1:]) - 1
		}
		if !good {
			d.r.unclear = d.r.plan.all()
			return
		}
	}
}

// top is what was opened last; there always is something, the list of documents.
func (d *document) top() *level { return &d.inside[len(d.inside)-1] }

// value begins a value. It returns false if there may be none.
func (d *document) value() bool {
	top := d.top()
	if !top.object {
		if top.n++; top.n == 2 && len(d.inside) == 1 { // a second document, where each may be an element
			d.r.unclear |= top.each
		}
		d.place, d.bare, d.on, d.is = top.place, top.bare, top.each, 0
	}
	d.isName, d.keep, d.text = false, d.is != 0, d.text[:0]
	return d.want <= firstValue
}

// ends ends a value.
func (d *document) ends() {
	if d.want = aComma; len(d.inside) == 1 {
		d.want = aValue // of the next document
	}
}

// open returns false if there are too many levels.
func (d *document) open(object bool) bool {
	d.r.unclear |= d.is
	depth, l := len(d.inside)-1, level{place: d.place, bare: d.bare, object: object}
	for on := d.on; on != 0; on &= on - 1 {
		array := bits.TrailingZeros64(on)
		switch path := d.r.plan.wanted[array].keys; {
		case len(path) == depth:
			l.items |= 1 << array
		case path[depth] == "#":
			l.each |= 1 << array
		default:
			l.named |= 1 << array
		}
	}
	if d.inside, d.want = append(d.inside, l), firstValue; object {
		d.want = firstName
	}
	return depth < mostLevels
}

func (d *document) close() bool {
	for arrays := d.top().items; arrays != 0; arrays &= arrays - 1 {
		d.r.items[bits.TrailingZeros64(arrays)] += d.top().n
	}
	d.inside = d.inside[:len(d.inside)-1]
	d.ends()
	return true
}

// inScalar takes bytes of a scalar, and returns how many.
func (d *document) inScalar(data []byte) (n int) {
	for n < len(data) && scalars[data[n]] {
		n++
	}
	if d.append(data[:n]); n < len(data) {
		d.scalarEnds()
	}
	return n
}

// inString takes bytes of a string, and returns how many.
func (d *document) inString(data []byte) (n int) {
	if d.escape {
		d.escape = false
		d.append(data[:1])
		return 1
	}
	n = firstOf(data, `"\`)
	d.append(data[:n])
	if n == len(data) {
		return n
	}
	if d.escape = data[n] == '\\'; d.escape {
		d.append(data[n : n+1])
		return n + 1
	}
	text, valid := unescape(d.text)
	valid = valid && len(d.text) <= longestValue && utf8.Valid(text)
	if d.isName {
		d.want = aColon
		d.named(text, valid)
		return n + 1
	}
	d.ends()
	d.r.note(d.is, text, valid)
	return n + 1
}

func (d *document) append(data []byte) {
	if d.keep {
		d.text = appendUpTo(d.text, data, longestValue)
	}
}

// firstOf returns where the first of some bytes is, or the length.
func firstOf(data []byte, some string) int {
	const window = 64 // were it long, many of one before the first of another would take long
	for from := 0; from < len(data); from += window {
		next := data[from:min(len(data), from+window)]
		for i := range len(some) {
			if at := bytes.IndexByte(next, some[i]); at >= 0 {
				next = next[:at]
			}
		}
		if len(next) < window {
			return from + len(next)
		}
	}
	return len(data)
}

// named takes the name of a value. The readers of JSON compare names as they are, so one
// that is too long is none of ours. It may be that of an element, since PHP makes arrays of
// objects. But a whole body that is an object is one call of a batch, unless it has indexes.
func (d *document) named(name []byte, valid bool) {
	top := d.top()
	d.place, d.bare, d.on, d.is = place{}, place{}, top.each, 0
	if !d.keep {
		return
	}
	letters, _ := appendLetters(d.r.room[:0], name)
	if len(d.inside) > 2 || isIndex(letters) {
		top.n++
	}
	switch {
	case len(name) > longestName:
		return
	case !valid || string(name) == "__proto__": // of which Object.assign in JavaScript makes defaults
		d.r.unclear |= top.alive | top.bare.alive | top.items | top.each | top.named
		return
	case isIndex(letters):
		d.place, d.bare = top.place, top.bare
	default:
		d.place, _ = d.r.plan.names.walk(top.place, letters)
		d.bare, _ = d.r.plan.bare.walk(top.bare, letters)
	}
	d.is = (d.r.plan.names.at(d.place) | d.r.plan.bare.at(d.bare)) &^ d.r.unclear
	for arrays := top.named; arrays != 0; arrays &= arrays - 1 {
		array := bits.TrailingZeros64(arrays)
		if d.r.plan.wanted[array].keys[len(d.inside)-2] == string(letters) {
			d.on |= 1 << array
		}
	}
}

func (d *document) scalarEnds() {
	d.ends()
	d.r.note(d.is, d.text, plainNumber(d.text))
}

// plainNumber reports whether a number is written in the same way by whoever reads it.
func plainNumber(text []byte) bool {
	digits := bytes.TrimPrefix(text, []byte("-"))
	return len(digits) > 0 && len(digits) <= 15 && (digits[0] != '0' || len(text) == 1) && isIndex(digits)
}

func (d *document) end() {
	if d.want == inScalar {
		d.scalarEnds()
	}
	if d.want != aValue || len(d.inside) > 1 {
		d.r.unclear = d.r.plan.all()
	}
}

// unescape decodes a string where it is. A character that is escaped in two halves, such as an
// emoji, is not valid.
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
			r, err := strconv.ParseUint(string(text[i+1:min(i+5, len(text))]), 16, 32)
			i += 4
			if i >= len(text) || err != nil || !utf8.ValidRune(rune(r)) || r == utf8.RuneError {
				return nil, false
			}
			out = utf8.AppendRune(out, rune(r))
			continue
		}
		at := strings.IndexByte(`"\/bfnrt`, text[i])
		if at < 0 {
			return nil, false
		}
		out = append(out, "\"\\/\b\f\n\r\t"[at])
	}
	return out, true
}
