package form

import (
	"bytes"
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
// in case are equal. It leaves out what is not UTF-8.
func appendLetters(to, text []byte) (letters []byte, valid bool) {
	valid = true
	for i := 0; i < len(text); i++ {
		if c := text[i]; c < utf8.RuneSelf {
			if c = folded[c]; c != 0 {
				to = append(to, c)
			}
			continue
		}
		r, size := utf8.DecodeRune(text[i:])
		i += size - 1
		valid = valid && r != utf8.RuneError
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
	return to, valid
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
	return bytes.ContainsFunc(text, func(c rune) bool { return c < ' ' || c == 0x7f })
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
// of it may follow. If it is loose, only PHP reads it, which makes _ of a [ without ] and leaves
// out what comes after the last key.
func (r *Reading) name(name []byte, wanted uint64, cut, loose bool) (is uint64) {
	p := r.plan
	if field, _, typed := bytes.Cut(name, []byte(":")); typed { // Zope takes what follows for the type or charset
		r.unclear |= r.name(field, wanted, cut, loose)
	}
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
	if loose && !plain {
		letters, _ := appendLetters(r.room[:0], name)
		_, is = p.names.walk(place{alive: wanted}, letters)
		return is | p.names.at(at)
	}
	switch {
	case !plain && !cut && len(name) <= longestField && !utf8.Valid(name): // as in old sites' forms; readers may leave out any of it
		letters, _ := appendLetters(r.room[:0], name)
		for rest := wanted &^ r.unclear; rest != 0; rest &= rest - 1 {
			if i := bits.TrailingZeros64(rest); p.wanted[i].within(letters) {
				r.unclear |= 1 << i
			}
		}
		return 0
	case !plain || cut:
		end := bytes.IndexFunc(name, func(c rune) bool { return c == '[' || c == ']' || c == utf8.RuneError || unicode.IsControl(c) })
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
		if array := bits.TrailingZeros64(arrays); r.leadsTo(p.wanted[array].keys) {
			r.items[array]++
		}
	}
	r.unclear |= within & p.fields
	return is & p.fields &^ r.unclear
}

// within reports whether letters have those of a field, or of the first key of an array, in the same order.
func (w *wanted) within(letters []byte) bool {
	word := w.field
	if len(w.keys) > 0 {
		word = w.keys[0]
	}
	for _, c := range letters {
		if word != "" && word[0] == c {
			if word = word[1:]; word == "" {
				return true
			}
		}
	}
	return false
}

// leadsTo reports whether r.keys begin as the path of an array, where # stands for any key.
func (r *Reading) leadsTo(path []string) bool {
	if len(r.keys) < len(path) {
		return false
	}
	for i, key := range path {
		letters, _ := appendLetters(r.room[:0], r.keys[i])
		if key != "#" && string(letters) != key {
			return false
		}
	}
	return true
}
