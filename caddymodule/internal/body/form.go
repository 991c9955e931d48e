package body

import (
	"bytes"
	"encoding/hex"
	"hash/maphash"
	"slices"
	"strings"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/fold"
)

// A kind is what sort of form a body is to somebody.
type kind uint8

const (
	noForm     kind = iota
	someForm        // to Rack only, and PHP applications may read it themselves
	urlencoded      // application/x-www-form-urlencoded
	multipart       // multipart/form-data, and other types of parts
)

// A field is one field of a form. It is valid during the call only.
type field struct {
	name, value []byte
	file        bool
}

// A reading is a way to split a form into fields. The dialects are of those who
// split it so.
type reading struct {
	split    func(each func(field)) error
	dialects []dialect
}

var (
	bothDialects = []dialect{php, rack}
	rackDialect  = bothDialects[1:]
)

// readings returns the readings of a form. There are none if it is no form.
func (b *Body) readings() (kind, []reading) {
	const urlencodedType, multipartTypes = "application/x-www-form-urlencoded", "multipart/"
	toPHP, toRack := phpType(b.ContentType), rackType(b.ContentType)
	switch {
	case toPHP == urlencodedType || toRack == urlencodedType:
		return urlencoded, b.pairs(bothDialects)
	case strings.HasPrefix(toRack, multipartTypes):
		return multipart, []reading{{b.splitParts, bothDialects}}
	case b.ContentType == "":
		return someForm, b.pairs(rackDialect)
	}
	return noForm, nil
}

// phpType returns the media type as PHP reads it.
func phpType(contentType string) string {
	if end := strings.IndexAny(contentType, ";, "); end >= 0 {
		contentType = contentType[:end]
	}
	return strings.ToLower(contentType)
}

// rackType returns the media type as Rack reads it.
func rackType(contentType string) string {
	if end := strings.IndexAny(contentType, ";,"); end >= 0 {
		contentType = contentType[:end]
	}
	return strings.ToLower(strings.TrimRight(contentType, blanks+"\x00"))
}

// blanks are what isspace in C and \s in Ruby take for white space.
const blanks = " \t\n\v\f\r"

// pairs returns the readings of a URL-encoded form.
func (b *Body) pairs(dialects []dialect) []reading {
	split := func(semicolons bool) func(each func(field)) error {
		return func(each func(field)) error {
			splitPairs(b.Data, semicolons, each)
			return nil
		}
	}
	all := []reading{{split(false), dialects}}
	if bytes.IndexByte(b.Data, ';') >= 0 {
		all = append(all, reading{split(true), rackDialect})
	}
	return all
}

// splitPairs splits a URL-encoded form, at semicolons too as Rack 1 and some
// others do.
func splitPairs(data []byte, semicolons bool, each func(field)) {
	var room []byte
	for pair := range bytes.FieldsFuncSeq(data, func(c rune) bool { return c == '&' || semicolons && c == ';' }) {
		// Rack skips blanks after a separator, PHP those before a name.
		name, value, _ := bytes.Cut(bytes.TrimLeft(pair, " "), []byte("="))
		room = appendDecoded(room[:0], name)
		length := len(room)
		room = appendDecoded(room, value)
		each(field{name: room[:length:length], value: room[length:]})
	}
}

// appendDecoded leaves what is badly escaped as it is, as PHP does. Rack answers
// it with an error.
func appendDecoded(to, text []byte) []byte {
	for i := 0; i < len(text); i++ {
		to = append(to, text[i])
		switch last := to[len(to)-1:]; {
		case text[i] == '+':
			last[0] = ' '
		case text[i] == '%' && i+2 < len(text):
			if n, _ := hex.Decode(last, text[i+1:i+3]); n == 1 {
				i += 2
			}
		}
	}
	return to
}

// A dialect is how an application understands the names of fields.
type dialect uint8

const (
	php dialect = iota
	rack
)

// path appends up to most keys that lead to a field: user[login] has the keys
// user and login. An empty key after the first is one more element of an array.
// A name that is no field has no keys.
func (d dialect) path(to [][]byte, name []byte, most int) [][]byte {
	if d == php {
		return appendPHPPath(to, name, most)
	}
	return appendRackPath(to, name, most)
}

func appendPHPPath(to [][]byte, name []byte, most int) [][]byte {
	if end := bytes.IndexByte(name, 0); end >= 0 {
		name = name[:end]
	}
	name = bytes.TrimLeft(name, " ")
	first := bytes.IndexByte(name, '[')
	if len(name) == 0 || first == 0 {
		return to
	}
	if first < 0 || bytes.IndexByte(name[first:], ']') < 0 {
		return append(to, name) // a bracket that is never closed is an underscore
	}
	to = append(to, name[:first])
	for rest := name[first:]; len(to) < most && len(rest) > 0 && rest[0] == '['; {
		end := bytes.IndexByte(rest, ']')
		if end < 0 {
			break
		}
		key := rest[1:end]
		if len(key) == 1 && strings.IndexByte(blanks, key[0]) >= 0 {
			key = nil
		}
		to, rest = append(to, key), rest[end+1:]
	}
	return to
}

func appendRackPath(to [][]byte, name []byte, most int) [][]byte {
	for len(to) < most {
		inner := bytes.TrimLeft(name, "[]")
		if len(inner) == 0 {
			break
		}
		key, after := inner, []byte(nil)
		if end := bytes.IndexAny(inner, "[]"); end >= 0 {
			key, after = inner[:end], bytes.TrimLeft(inner[end:], "]")
		}
		if string(after) == "[" {
			return append(to, name)
		}
		to = append(to, key)
		switch {
		case len(after) == 0:
			return to
		case bytes.HasPrefix(after, []byte("[]")):
			to, after = append(to, nil), after[2:]
		case bytes.Contains(after, []byte("\n[]")): // its expressions look at lines
			return append(to, nil)
		}
		name = after
	}
	return to
}

// same reports whether two keys are the same, the first ones of their paths or
// not. PHP turns some bytes of variables' names into underscores.
func (d dialect) same(a, b []byte, first bool) bool {
	if d != php || !first {
		return bytes.Equal(a, b)
	}
	return slices.EqualFunc(a, b, func(a, b byte) bool { return underscored(a) == underscored(b) })
}

func underscored(c byte) byte {
	if c == ' ' || c == '.' || c == '[' {
		return '_'
	}
	return c
}

// A counter counts the items that the fields of a form make.
type counter struct {
	dialect dialect
	target  [][]byte // where the items are; # or nothing leads to any element
	n       int

	path [][]byte // of the field at hand
	seed maphash.Seed
	seen map[uint64]struct{} // elements, by a hash of their indexes
}

// counters returns a counter for each dialect and each meaning of the path.
func (p Path) counters(dialects []dialect) []counter {
	if len(p.keys) == 0 {
		return nil
	}
	nested := make([][]byte, len(p.keys))
	for i, key := range p.keys {
		nested[i] = []byte(key)
	}
	name := []byte(strings.Join(p.keys, "."))
	all := make([]counter, 0, 4)
	for _, d := range dialects {
		literal := d.path(nil, name, len(name)+1)
		for len(literal) > 1 && len(literal[len(literal)-1]) == 0 {
			literal = literal[:len(literal)-1] // rows[] are the elements of rows
		}
		all = append(all, counter{dialect: d, target: literal})
		if len(p.keys) > 1 {
			all = append(all, counter{dialect: d, target: nested})
		}
	}
	return all
}

// add takes a field for an item if it is at the target or is one more element
// there, and all that have the same index there for one.
func (c *counter) add(name []byte) {
	c.path = c.dialect.path(c.path[:0], name, len(c.target)+1)
	if len(c.path) < len(c.target) || len(c.target) == 0 {
		return
	}
	oneMore := false
	var hash uint64
	for i, want := range c.target {
		switch got := c.path[i]; {
		case i > 0 && len(got) == 0:
			if !anyElement(want) && !numbered(want) {
				return
			}
			oneMore = true
		case i > 0 && anyElement(want):
			hash = hash*31 + c.hash(got)
		case !c.dialect.same(got, want, i == 0):
			return
		}
	}
	if oneMore || len(c.path) == len(c.target) || len(c.path[len(c.target)]) == 0 {
		c.n++
		return
	}
	hash = hash*31 + c.hash(c.path[len(c.target)])
	if _, found := c.seen[hash]; !found {
		c.seen[hash] = struct{}{}
		c.n++
	}
}

func anyElement(key []byte) bool { return len(key) == 0 || string(key) == "#" }

func (c *counter) hash(key []byte) uint64 {
	if c.seen == nil {
		c.seed, c.seen = maphash.MakeSeed(), make(map[uint64]struct{})
	}
	return maphash.Bytes(c.seed, key)
}

// A finder finds a field of a form.
type finder struct {
	dialect dialect
	target  [][]byte

	path  [][]byte // of the field at hand
	value string   // of the last one
	given int      // how often
	array bool     // the last one is a file, an array, or part of one, or holds others
}

func findersOf(name string, dialects []dialect) []finder {
	all := make([]finder, len(dialects))
	for i, d := range dialects {
		all[i] = finder{dialect: d, target: d.path(nil, []byte(name), len(name)+1)}
	}
	return all
}

func (f *finder) add(given field) {
	f.path = f.dialect.path(f.path[:0], given.name, len(f.target)+1)
	if len(f.path) == 0 || len(f.target) == 0 {
		return
	}
	for i := range min(len(f.path), len(f.target)) {
		if i > 0 && (len(f.path[i]) == 0) != (len(f.target[i]) == 0) {
			f.array = true
			return
		}
		if !f.dialect.same(f.path[i], f.target[i], i == 0) {
			return
		}
	}
	if len(f.path) != len(f.target) || given.file {
		f.array = true
		return
	}
	f.given++
	f.array = f.array && f.list()
	f.value = string(bytes.Trim(given.value, blanks+"\x00"))
}

// list reports whether the field is an array's element without an index.
func (f *finder) list() bool {
	return slices.ContainsFunc(f.target, func(key []byte) bool { return len(key) == 0 })
}

// result returns the last value, folded, and "" if there is none. It returns false
// if readers may see something else. If the form is long, PHP has not read its end.
func (f *finder) result(folding fold.Func, long bool) (value string, sure bool) {
	if f.array || f.given > 1 && (long || f.list()) {
		return "", false
	}
	return folding(f.value), true
}
