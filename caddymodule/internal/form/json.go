package form

import (
	"bufio"
	"bytes"
	"math/bits"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// document reads JSON: one document, or several one after another.
type document struct {
	r    *Reading
	in   *bufio.Reader
	text []byte // of the name or value at hand, if it is kept
}

// A value is where one stands.
type value struct {
	place        // among names
	depth int    // how many arrays and objects are around it
	is    uint64 // the fields of which it is the value
	on    uint64 // the arrays whose path leads to it
}

// scalars are the bytes of numbers, true, false and null.
var scalars = func() (table [256]bool) {
	for _, c := range []byte("0123456789+-.eEtrufalsn") {
		table[c] = true
	}
	return table
}()

func (d *document) read() error {
	p := d.r.plan
	at := value{place: place{alive: p.fields}, on: p.all() &^ p.fields}
	for n := 0; ; n++ {
		c, err := d.next()
		if err != nil {
			return ignoreEOF(err)
		}
		if n == 1 { // a second document
			d.r.unclear |= at.on
			at.on = 0
		}
		if err := d.value(c, at); err != nil {
			return unlessFailed(err)
		}
	}
}

// next returns the next byte that is no white space.
func (d *document) next() (c byte, err error) {
	for {
		if c, err = d.in.ReadByte(); err != nil || c != ' ' && c != '\n' && c != '\r' && c != '\t' {
			return c, err
		}
	}
}

// value reads a value from its first byte on.
func (d *document) value(c byte, v value) error {
	switch {
	case c == '"':
		text, valid, err := d.string(v.is != 0)
		d.r.note(v.is, text, valid && len(text) <= longestValue && utf8.Valid(text))
		return err
	case c == '{' || c == '[':
		d.r.unclear |= v.is
		return d.container(c+2, v)
	case !scalars[c]:
		return errUnclear
	}
	var err error
	for d.text = d.text[:0]; err == nil && scalars[c]; c, err = d.in.ReadByte() {
		if v.is != 0 && len(d.text) < 20 {
			d.text = append(d.text, c)
		}
	}
	d.r.note(v.is, d.text, plainNumber(d.text))
	if err == nil {
		err = d.in.UnreadByte()
	}
	return ignoreEOF(err) // a document may end with it
}

// A container is an object or an array.
type container struct {
	value
	items, each, named uint64 // arrays: this is it; # comes next on the path; a name does
	seen               uint64 // those that a name has led to
	n                  int    // how many elements it has
}

// container reads an object or an array, which ends with this byte.
func (d *document) container(end byte, v value) error {
	if v.depth == mostLevels {
		return errUnclear
	}
	l := container{value: v}
	for on := v.on; on != 0; on &= on - 1 {
		array := bits.TrailingZeros64(on)
		switch path := d.r.plan.wanted[array].keys; {
		case len(path) == v.depth:
			l.items |= 1 << array
		case path[v.depth] == "#":
			l.each |= 1 << array
		default:
			l.named |= 1 << array
		}
	}
	c, err := d.next()
	for more := c != end; more && err == nil; {
		element := value{v.place, v.depth + 1, 0, l.each}
		if end == ']' {
			l.n++
		} else if element, err = d.name(c, &l); err == nil {
			c, err = d.next()
		}
		if err == nil {
			err = d.value(c, element)
		}
		if err == nil {
			c, err = d.next()
		}
		if more = c == ','; more && err == nil {
			c, err = d.next()
		} else if c != end && err == nil {
			err = errUnclear
		}
	}
	for arrays := l.items; arrays != 0; arrays &= arrays - 1 {
		d.r.items[bits.TrailingZeros64(arrays)] += l.n
	}
	return err
}

// name reads a name from its quote on, with the colon behind it. The readers of JSON compare
// names as they are, so one that is too long is none of ours.
func (d *document) name(quote byte, l *container) (v value, err error) {
	v.depth = l.depth + 1
	wanted := l.alive | l.items | l.each | l.named
	if quote != '"' {
		return v, errUnclear
	}
	name, valid, err := d.string(wanted != 0)
	if err != nil {
		return v, err
	}
	if c, err := d.next(); err != nil || c != ':' {
		return v, unlessFailed(err)
	}
	if wanted == 0 || len(name) > longestName {
		return v, nil
	}
	letters, inUTF8 := appendLetters(d.r.room[:0], name)
	switch {
	case !valid || !inUTF8:
		d.r.unclear |= wanted
		return v, nil
	case isIndex(letters):
		v.place = l.place
		l.n++
	default:
		v.place, _ = d.r.plan.names.walk(l.place, letters)
	}
	v.is = d.r.plan.names.at(v.place) &^ d.r.unclear
	v.on = l.each
	for arrays := l.named; arrays != 0; arrays &= arrays - 1 {
		array := bits.TrailingZeros64(arrays)
		if d.r.plan.wanted[array].keys[l.depth] == string(letters) {
			v.on |= 1 << array
		}
	}
	d.r.unclear |= l.seen & v.on &^ l.each
	l.seen |= v.on
	return v, nil
}

// string reads a string behind its first quote, and returns it if it is kept, as long as it is
// valid and not too long.
func (d *document) string(keep bool) (text []byte, valid bool, err error) {
	d.text = d.text[:0]
	for backslashes := 0; ; {
		data, err := d.in.ReadSlice('"')
		if keep { // up to two bytes more than is read: the quote is one of them
			d.text = append(d.text, data[:min(len(data), longestValue+2-len(d.text))]...)
		}
		if err == bufio.ErrBufferFull {
			backslashes = trailing(data, backslashes)
			continue
		}
		if err != nil {
			return nil, false, err
		}
		if backslashes = trailing(data[:len(data)-1], backslashes); backslashes%2 == 0 {
			break
		}
		backslashes = 0
	}
	if len(d.text) > longestValue+1 {
		return d.text, false, nil
	}
	text, valid = unescape(bytes.TrimSuffix(d.text, []byte{'"'}))
	return text, valid, nil
}

// trailing counts the backslashes at the end of data, behind so many others.
func trailing(data []byte, before int) int {
	n := len(data) - len(bytes.TrimRight(data, `\`))
	if n == len(data) {
		n += before
	}
	return n
}

// plainNumber reports whether a number is written in the same way by whoever reads it.
func plainNumber(text []byte) bool {
	digits := bytes.TrimPrefix(text, []byte("-"))
	if len(digits) == 0 || len(digits) > 15 || digits[0] == '0' && len(text) > 1 {
		return false
	}
	return isIndex(digits)
}

// unescape decodes a string where it is. Surrogates are not decoded, but not valid.
func unescape(text []byte) (_ []byte, valid bool) {
	out := text[:0]
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c < ' ' {
			return nil, false
		}
		if c != '\\' {
			out = append(out, c)
			continue
		}
		i++
		if i < len(text) && text[i] == 'u' {
			r, err := strconv.ParseUint(string(text[i+1:min(i+5, len(text))]), 16, 16)
			if i += 4; err != nil || i >= len(text) || utf16.IsSurrogate(rune(r)) || r == utf8.RuneError {
				return nil, false
			}
			out = utf8.AppendRune(out, rune(r))
			continue
		}
		at := -1
		if i < len(text) {
			at = strings.IndexByte(`"\/bfnrt`, text[i])
		}
		if at < 0 {
			return nil, false
		}
		out = append(out, "\"\\/\b\f\n\r\t"[at])
	}
	return out, true
}
