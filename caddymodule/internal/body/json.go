package body

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"
)

// deepest is how deep JSON may be nested to be looked at. PHP reads 512 levels
// by default, Rails 100.
const deepest = 1000

// A Path leads to an array in JSON, or names a field of a form. It is that part
// of gjson's syntax that has one meaning in every document: keys with dots
// between them, # for all elements of an array, and \ before a dot that is part
// of a key. The zero Path is the whole body.
type Path struct{ keys []string }

// ParsePath reads a path such as data.rows or orders.#.lines. Errors say what
// would be right.
func ParsePath(text string) (Path, error) {
	var path Path
	if text == "" {
		return path, nil
	}
	if strings.ContainsAny(text, "*?|@!{}()") {
		return path, fmt.Errorf("invalid path %q: want keys with dots between them, such as data.rows or orders.#.lines", text)
	}
	key := ""
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\' && i+1 < len(text):
			i++
			key += text[i : i+1]
		case c == '.':
			path.keys = append(path.keys, key)
			key = ""
		default:
			key += text[i : i+1]
		}
	}
	path.keys = append(path.keys, key)
	for _, key := range path.keys {
		if key == "" {
			return path, fmt.Errorf("invalid path %q: a key is empty", text)
		}
	}
	return path, nil
}

func looksLikeJSON(data []byte) bool {
	data = bytes.TrimLeft(bytes.TrimPrefix(data, byteOrderMark), " \t\r\n")
	return len(data) > 0 && (data[0] == '[' || data[0] == '{')
}

var byteOrderMark = []byte("\ufeff")

// numbered reports whether a key is what PHP and Rails take for an index.
func numbered(key []byte) bool {
	digits := bytes.TrimPrefix(key, []byte("-"))
	for _, c := range digits {
		if c < '0' || c > '9' {
			return false
		}
	}
	return len(digits) > 0
}

// jsonItems returns the length of the array at path, or 1 if there is none.
func jsonItems(data []byte, path Path) (n int, ok bool) {
	data = bytes.TrimPrefix(data, byteOrderMark)
	if tooDeep(data) || !gjson.ValidBytes(data) {
		return 0, false
	}
	s := scanner{data: data}
	return max(1, s.count(path.keys)), true
}

// A scanner walks once over JSON that is known to be valid. (A library's
// iterator reads a value again for every level that it is nested in.)
type scanner struct {
	data []byte
	at   int
}

// count passes over a value and returns the length of the array that keys lead
// to in it. A key that stands twice in an object counts as the longer, since
// applications differ in which one they take. Objects with numbered keys are
// arrays.
func (s *scanner) count(keys []string) int {
	switch s.peek() {
	case '{':
		return s.countObject(keys)
	case '[':
		return s.countArray(keys)
	}
	s.skip()
	if len(keys) == 0 {
		return 1
	}
	return 0
}

func (s *scanner) countObject(keys []string) int {
	longest, elements := 0, 0
	for s.next('}') {
		switch key := s.key(); {
		case len(keys) == 0:
			s.skip()
			if numbered(key) {
				elements++
			}
		case string(key) == keys[0]:
			longest = max(longest, s.count(keys[1:]))
		case keys[0] == "#" && numbered(key):
			elements += s.count(keys[1:])
		default:
			s.skip()
		}
	}
	if len(keys) == 0 {
		return max(1, elements)
	}
	return longest + elements
}

func (s *scanner) countArray(keys []string) (n int) {
	for at := 0; s.next(']'); at++ {
		switch {
		case len(keys) == 0:
			s.skip()
			n++
		case keys[0] == "#" || keys[0] == strconv.Itoa(at):
			n += s.count(keys[1:])
		default:
			s.skip()
		}
	}
	return n
}

// peek passes over white space and returns the byte after it, or 0 at the end.
func (s *scanner) peek() byte {
	for ; s.at < len(s.data); s.at++ {
		if c := s.data[s.at]; c > ' ' {
			return c
		}
	}
	return 0
}

// next moves on to the next member of an array or object, or over its end and
// returns false.
func (s *scanner) next(end byte) bool {
	if c := s.peek(); c == '[' || c == '{' || c == ',' {
		s.at++
		if c == ',' || s.peek() != end {
			return true
		}
	}
	s.at++
	return false
}

// key passes over a key and its colon.
func (s *scanner) key() []byte {
	s.peek()
	start := s.at
	s.skipString()
	raw := s.data[start:min(s.at, len(s.data))]
	s.peek()
	s.at++
	if bytes.IndexByte(raw, '\\') >= 0 {
		return []byte(gjson.ParseBytes(raw).String())
	}
	return bytes.Trim(raw, `"`)
}

// skip passes over a value.
func (s *scanner) skip() {
	for s.peek(); s.at < len(s.data); s.at++ {
		switch s.data[s.at] {
		case '"':
			s.skipString()
			return
		case '[', '{':
			s.skipNested()
			return
		case ',', ']', '}', ' ', '\t', '\r', '\n':
			return
		}
	}
}

func (s *scanner) skipString() {
	for s.at++; s.at < len(s.data); s.at++ {
		switch s.data[s.at] {
		case '\\':
			s.at++
		case '"':
			s.at++
			return
		}
	}
}

// skipNested passes over an array or object.
func (s *scanner) skipNested() {
	for depth := 0; s.at < len(s.data); {
		switch s.data[s.at] {
		case '"':
			s.skipString()
			continue
		case '[', '{':
			depth++
		case ']', '}':
			depth--
		}
		s.at++
		if depth == 0 {
			return
		}
	}
}

// tooDeep reports whether brackets are nested deeper than is safe to follow.
// Brackets in strings do not count.
func tooDeep(data []byte) bool {
	depth := 0
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case '"':
			for i++; i < len(data) && data[i] != '"'; i++ {
				if data[i] == '\\' {
					i++
				}
			}
		case '[', '{':
			if depth++; depth > deepest {
				return true
			}
		case ']', '}':
			depth--
		}
	}
	return false
}
