package form

import (
	"bytes"
	"encoding/hex"
	"math/bits"
	"unicode"
	"unicode/utf8"
)

// folded are letters and digits of ASCII, in lower case, and 0 for all else.
var folded = func() (table [utf8.RuneSelf]byte) {
	for c := range table {
		switch {
		case 'A' <= c && c <= 'Z':
			table[c] = byte(c) + 'a' - 'A'
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9':
			table[c] = byte(c)
		}
	}
	return table
}()

// appendLetters appends the letters and digits of a text, so that those that differ only
// in case are equal. It stops at what is not UTF-8.
func appendLetters(to, text []byte) (letters []byte, valid bool) {
	for i := 0; i < len(text); i++ {
		if c := text[i]; c < utf8.RuneSelf {
			if c = folded[c]; c != 0 {
				to = append(to, c)
			}
			continue
		}
		r, size := utf8.DecodeRune(text[i:])
		if r == utf8.RuneError {
			return to, false
		}
		i += size - 1
		if unicode.IsLetter(r) || unicode.IsDigit(r) {
			for other := unicode.SimpleFold(r); other != r; other = unicode.SimpleFold(other) {
				r = min(r, other) // that ends with the least of them
			}
			if r < utf8.RuneSelf {
				r = rune(folded[r])
			}
			to = utf8.AppendRune(to, r)
		}
	}
	return to, true
}

// isIndex reports whether a key is an index, which has no letters but digits.
func isIndex(letters []byte) bool {
	for _, c := range letters {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
}

// A dictionary has up to 64 words, which are compared letter by letter.
type dictionary struct {
	next [][256]uint64 // the words with this byte at this place
	ends []uint64      // the words of this length
}

func (d *dictionary) add(word int, letters []byte) {
	for len(d.ends) <= len(letters) {
		d.ends = append(d.ends, 0)
	}
	for len(d.next) < len(letters) {
		d.next = append(d.next, [256]uint64{})
	}
	for i, c := range letters {
		d.next[i][c] |= 1 << word
	}
	d.ends[len(letters)] |= 1 << word
}

// A place is how far one has come in a name.
type place struct {
	alive  uint64 // the words that it may still become
	length int
}

// at returns the words that end at a place.
func (d *dictionary) at(p place) uint64 {
	if p.length >= len(d.ends) {
		return 0
	}
	return p.alive & d.ends[p.length]
}

// walk goes on by some letters. It also returns the words that end at them.
func (d *dictionary) walk(p place, letters []byte) (_ place, passed uint64) {
	for _, c := range letters {
		if p.alive == 0 || p.length == len(d.next) {
			return place{}, passed
		}
		p.alive &= d.next[p.length][c]
		p.length++
		passed |= d.at(p)
	}
	return p, passed
}

func hasControl(text []byte) bool {
	for _, c := range text {
		if c < ' ' || c == 0x7f {
			return true
		}
	}
	return false
}

// split splits the name of a field in a form into its keys: user[login] has the keys user
// and login. A name that is not plain has other ones for other readers.
func split(keys [][]byte, name []byte) (_ [][]byte, plain bool) {
	end := bytes.IndexByte(name, '[')
	if end < 0 {
		end = len(name)
	}
	if len(name) == 0 || end == 0 || hasControl(name) || bytes.IndexByte(name[:end], ']') >= 0 {
		return keys, len(name) == 0
	}
	keys = append(keys, name[:end])
	for name = name[end:]; len(name) > 0; {
		end = bytes.IndexByte(name, ']')
		if name[0] != '[' || end < 0 || bytes.LastIndexByte(name[:end], '[') > 0 || len(keys) > mostBrackets {
			return keys, false
		}
		keys, name = append(keys, name[1:end]), name[end+1:]
	}
	return keys, true
}

// name reads the name of a field in a form. It returns the fields of which it is the name,
// notes others that are unclear by it, and counts it if it is an item. If it is cut, more
// of it may follow.
func (r *Reading) name(name []byte, wanted uint64, cut bool) (is uint64) {
	p := r.plan
	keys, plain := split(r.keys[:0], name)
	r.keys = keys
	at, within := place{alive: wanted}, uint64(0)
	for i, key := range keys {
		if i > 0 {
			within |= p.names.at(at)
		}
		letters, valid := appendLetters(r.room[:0], key)
		if plain = plain && valid; i == 0 || !isIndex(letters) {
			at, _ = p.names.walk(at, letters)
		}
	}
	if cut || !plain {
		end := bytes.IndexFunc(name, func(c rune) bool { return c == '[' || c == ']' || unicode.IsControl(c) })
		if end < 0 {
			end = len(name)
		}
		letters, _ := appendLetters(r.room[:0], name[:end])
		longer, shorter := p.names.walk(place{alive: wanted}, letters)
		r.unclear |= longer.alive | shorter
		return 0
	}
	is = p.names.at(at)
	for arrays := (is | within) &^ p.fields; arrays != 0; arrays &= arrays - 1 {
		if array := bits.TrailingZeros64(arrays); r.leads(p.wanted[array].keys) {
			r.items[array]++
		}
	}
	r.unclear |= within & p.fields
	return is & p.fields &^ r.unclear
}

// leads reports whether r.keys begin with a path.
func (r *Reading) leads(path []string) bool {
	for i, key := range path {
		if i == len(r.keys) {
			return false
		}
		if letters, _ := appendLetters(r.room[:0], r.keys[i]); key != "#" && key != string(letters) {
			return false
		}
	}
	return true
}

// pairs reads a URL-encoded form, or a query string.
type pairs struct {
	r      *Reading
	wanted uint64

	fields  int
	text    []byte // of the name, then of the value, as it came
	inValue bool
	is      uint64 // the fields of which it is the value
	skip    bool   // nobody wants what comes up to the next pair
	odd     bool   // the pair is next to a semicolon
}

// Write implements io.Writer.
func (p *pairs) Write(data []byte) (int, error) {
	for rest := data; ; {
		ends := "&;="
		if p.inValue {
			ends = "&;"
		}
		n := bytes.IndexAny(rest, ends)
		if n < 0 {
			p.keep(rest)
			return len(data), nil
		}
		p.keep(rest[:n])
		if c := rest[n]; c == '=' {
			p.named(false)
		} else {
			if p.odd = p.odd || c == ';'; c == ';' && !p.inValue && len(p.text) > 0 {
				p.named(true) // not all readers split it there
			}
			p.end()
			p.odd = c == ';'
		}
		rest = rest[n+1:]
	}
}

// keep keeps up to one byte more of a name or value than is read.
func (p *pairs) keep(data []byte) {
	most := longestName
	if p.inValue {
		most = longestValue
	}
	if !p.skip {
		p.text = append(p.text, data[:min(len(data), most+1-len(p.text))]...)
	}
}

// named ends the name of a pair.
func (p *pairs) named(cut bool) {
	name, whole := unescaped(p.text)
	p.is = p.r.name(name, p.wanted, cut || !whole || len(p.text) > longestName)
	p.skip, p.inValue, p.text = p.is == 0, true, p.text[:0]
}

// end ends a pair, and the form with the last one.
func (p *pairs) end() {
	if p.fields++; p.fields > mostFields {
		p.r.unclear |= p.wanted
	}
	if !p.inValue {
		p.named(false)
	}
	if !p.skip {
		plain := !p.odd && len(p.text) <= longestValue && bytes.IndexByte(p.text, 0) < 0 // one at the end is none for Rack
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
