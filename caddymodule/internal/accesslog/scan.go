package accesslog

import (
	"bytes"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
	"unsafe"
)

// A scanner reads JSON from memory that it may change: escaped text is unescaped in
// place. It is lax about values that are skipped. Once something is wrong, bad stays
// set, and everything else does nothing.
type scanner struct {
	data []byte
	at   int
	bad  bool
}

// kind skips white space and returns the byte that the next value begins with, or 0.
func (s *scanner) kind() byte {
	for s.at < len(s.data) {
		switch c := s.data[s.at]; c {
		case ' ', '\t', '\r', '\n':
			s.at++
		default:
			return c
		}
	}
	return 0
}

// eat skips the byte that must come next.
func (s *scanner) eat(c byte) {
	if s.kind() != c || s.bad {
		s.bad = true
		return
	}
	s.at++
}

// more reports whether the object or array, which ends with that byte, has another
// element. It must be called before each; first is true for the first of them, and set
// to false.
func (s *scanner) more(first *bool, end byte) bool {
	if s.bad {
		return false
	}
	switch c := s.kind(); {
	case c == end:
		s.at++
		return false
	case *first:
		*first = false
		return true
	case c == ',':
		s.at++
		return true
	}
	s.bad = true
	return false
}

// name returns the name of the next member of an object.
func (s *scanner) name() []byte {
	name := s.text()
	s.eat(':')
	return name
}

// span returns what is between the quotes of the next value, which is a string, and
// whether it has escapes.
func (s *scanner) span() (inside []byte, escaped bool) {
	if s.kind() != '"' || s.bad {
		s.bad = true
		return nil, false
	}
	from := s.at + 1
	for at := from; ; {
		n := bytes.IndexByte(s.data[at:], '"')
		if n < 0 {
			s.bad = true
			return nil, false
		}
		at += n
		slashes := 0
		for s.data[at-1-slashes] == '\\' { // ends at the opening quote
			slashes++
		}
		if slashes%2 == 0 {
			s.at = at + 1
			inside = s.data[from:at:at]
			return inside, escaped || bytes.IndexByte(inside, '\\') >= 0
		}
		at, escaped = at+1, true
	}
}

// text returns the next value, which is a string, unescaped in place.
func (s *scanner) text() []byte {
	inside, escaped := s.span()
	if !escaped {
		return inside
	}
	unescaped, ok := unescapeJSON(inside[:0], inside)
	s.bad = s.bad || !ok
	return unescaped
}

// textOr returns the next value if it is a string, and otherwise skips it.
func (s *scanner) textOr() []byte {
	if s.kind() != '"' {
		s.skip()
		return nil
	}
	return s.text()
}

// number returns the text of the next value if it is a number, and otherwise skips it.
func (s *scanner) number() []byte {
	if c := s.kind(); c != '-' && (c < '0' || c > '9') {
		s.skip()
		return nil
	}
	return s.raw()
}

// raw skips the next value and returns its text.
func (s *scanner) raw() []byte {
	s.kind()
	from := s.at
	s.skip()
	if s.bad {
		return nil
	}
	return s.data[from:s.at:s.at]
}

// skip skips the next value.
func (s *scanner) skip() {
	depth := 0
	for {
		switch c := s.kind(); c {
		case 0:
			s.bad = true
		case '"':
			s.span()
		case '{', '[':
			depth++
			s.at++
			continue
		case '}', ']':
			if depth--; depth < 0 {
				s.bad = true
			}
			s.at++
		case ',', ':':
			s.bad = s.bad || depth == 0
			s.at++
			continue
		default:
			s.skipWord()
		}
		if s.bad || depth == 0 {
			return
		}
	}
}

// skipWord skips a number, true, false or null.
func (s *scanner) skipWord() {
	from := s.at
	for s.at < len(s.data) {
		switch c := s.data[s.at]; {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '-', c == '+', c == '.', c == 'E':
			s.at++
			continue
		}
		break
	}
	s.bad = s.bad || s.at == from
}

// unescapeJSON appends text without its escapes. The target may begin where the text
// does, because no escape is shorter than what it stands for.
func unescapeJSON(to, text []byte) ([]byte, bool) {
	for i := 0; i < len(text); {
		next := bytes.IndexByte(text[i:], '\\')
		if next < 0 {
			return append(to, text[i:]...), true
		}
		to = append(to, text[i:i+next]...)
		if i += next + 1; i >= len(text) {
			return to, false
		}
		c := text[i]
		i++
		switch c {
		case '"', '\\', '/':
			to = append(to, c)
		case 'b':
			to = append(to, '\b')
		case 'f':
			to = append(to, '\f')
		case 'n':
			to = append(to, '\n')
		case 'r':
			to = append(to, '\r')
		case 't':
			to = append(to, '\t')
		case 'u':
			r, ok := unit(text[i:])
			if !ok {
				return to, false
			}
			i += 4
			if utf16.IsSurrogate(r) {
				r2, pair := rune(0), false
				if len(text) >= i+6 && text[i] == '\\' && text[i+1] == 'u' {
					r2, pair = unit(text[i+2:])
				}
				if r = utf16.DecodeRune(r, r2); pair && r != utf8.RuneError {
					i += 6
				}
			}
			to = utf8.AppendRune(to, r)
		default:
			return to, false
		}
	}
	return to, true
}

// unit reads the four digits of an escape.
func unit(digits []byte) (rune, bool) {
	if len(digits) < 4 {
		return 0, false
	}
	n, err := strconv.ParseUint(view(digits[:4]), 16, 16)
	return rune(n), err == nil
}

// view returns the bytes as a string that shares their memory.
func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
