package body

import (
	"bytes"
	"encoding/hex"
	"errors"
	"hash/maphash"
	"regexp"
	"slices"
	"strings"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/fold"
)

// A kind is what sort of form a body is.
type kind uint8

const (
	noForm     kind = iota
	urlencoded      // application/x-www-form-urlencoded, or of no type
	multipart       // multipart/form-data, and other types of parts
)

// A field is one field of a form. It is valid during the call only.
type field struct {
	name, value []byte
	file        bool
	odd         bool // not all readers separate it from others
}

// form splits the body into fields, if it is a form. The error is errUnclear if readers
// may differ about that.
func (b *Body) form(each func(field)) (kind, error) {
	const urlencodedType = "application/x-www-form-urlencoded"
	media, _, _ := strings.Cut(b.ContentType, ";")
	switch media = strings.ToLower(strings.TrimSpace(media)); {
	case media == urlencodedType, media == "": // Rack takes what has no type for a form, PHP does not
		splitPairs(b.Data, each)
		return urlencoded, nil
	case strings.HasPrefix(media, "multipart/"):
		return multipart, b.splitParts(each)
	case strings.HasPrefix(media, urlencodedType):
		return urlencoded, errUnclear
	}
	return noForm, nil
}

// splitPairs splits a URL-encoded form. At a semicolon, Rack 1 and some others end a field.
func splitPairs(data []byte, each func(field)) {
	var room []byte
	for pair := range bytes.SplitSeq(data, []byte("&")) {
		odd := bytes.IndexByte(pair, ';') >= 0
		for part := range bytes.SplitSeq(pair, []byte(";")) {
			name, value, _ := bytes.Cut(part, []byte("="))
			room = appendDecoded(room[:0], name)
			length := len(room)
			room = appendDecoded(room, value)
			each(field{name: room[:length:length], value: room[length:], odd: odd})
		}
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

// odd are the bytes of names that PHP or Rack read in their own ways.
const odd = " .%\x00\t\n\v\f\r"

// appendKeys appends the keys that lead to a field: user[login] has the keys user and
// login. An empty key after the first is one more element of an array. It returns false
// if PHP and Rack may differ about the name.
func appendKeys(to [][]byte, name []byte) (keys [][]byte, plain bool) {
	base, rest := name, []byte(nil)
	if at := bytes.IndexByte(name, '['); at >= 0 {
		base, rest = name[:at], name[at:]
	}
	to, plain = append(to, base), len(base) > 0 && !bytes.ContainsAny(base, odd+"]")
	for len(rest) > 0 {
		end := bytes.IndexByte(rest, ']')
		if rest[0] != '[' || end < 0 {
			return to, false
		}
		key := rest[1:end]
		plain = plain && !bytes.ContainsAny(key, "[\x00\t\n\v\f\r") && string(key) != " "
		to, rest = append(to, key), rest[end+1:]
	}
	return to, plain
}

// loose returns what is left of a name in whatever way it is read.
func loose(name []byte) []byte {
	name, _, _ = bytes.Cut(name, []byte{0})
	return bytes.Map(func(c rune) rune {
		if strings.ContainsRune(odd+"[]_", c) {
			return -1
		}
		return c
	}, name)
}

// A target is a field that is looked for. The zero target is none.
type target struct {
	keys  [][]byte
	loose []byte
	odd   bool // its name is

	path [][]byte // of the field at hand
}

func targetOf(keys ...[]byte) (t target) {
	if len(keys) > 0 {
		first, plain := appendKeys(nil, keys[0])
		t.keys, t.odd = append(first, keys[1:]...), !plain
	}
	t.loose = loose(bytes.Join(t.keys, nil))
	return t
}

// read reads the name of a field. It returns false if that may be the target, or lead to
// it, for one of PHP and Rack and not for the other.
func (t *target) read(given *field) (clear bool) {
	var plain bool
	t.path, plain = appendKeys(t.path[:0], given.name)
	alike := len(t.keys) > 0 && bytes.Equal(t.path[0], t.keys[0])
	if !given.odd && (alike && t.odd || plain && !t.odd) {
		return true
	}
	name := loose(given.name)
	t.path = t.path[:0]
	return len(name) == 0 || len(t.loose) == 0 || !bytes.HasPrefix(name, t.loose) && !bytes.HasPrefix(t.loose, name)
}

// A counter counts the items that the fields of a form make.
type counter struct {
	target // where the items are; # or nothing leads to any element
	n      int
	seed   maphash.Seed
	seen   map[uint64]struct{} // elements, by a hash of their indexes
}

// counter returns the counter of a path.
func (p Path) counter() *counter {
	keys := make([][]byte, len(p.keys))
	for i, key := range p.keys {
		keys[i] = []byte(key)
	}
	c := &counter{target: targetOf(keys...)}
	for n := len(c.keys); n > 1 && len(c.keys[n-1]) == 0; n-- {
		c.keys = c.keys[:n-1] // rows[] are the elements of rows
	}
	return c
}

// add takes a field for an item if it is at the target or is one more element there, and
// all that have the same index there for one. It returns what read does.
func (c *counter) add(given *field) (clear bool) {
	if clear = c.read(given); len(c.path) < len(c.keys) || len(c.keys) == 0 {
		return clear
	}
	oneMore := false
	var hash uint64
	for i, want := range c.keys {
		switch got := c.path[i]; {
		case i > 0 && len(got) == 0:
			if !anyElement(want) && !numbered(want) {
				return true
			}
			oneMore = true
		case i > 0 && anyElement(want):
			hash = hash*31 + c.hash(got)
		case !bytes.Equal(got, want):
			return true
		}
	}
	if oneMore || len(c.path) == len(c.keys) || len(c.path[len(c.keys)]) == 0 {
		c.n++
		return true
	}
	hash = hash*31 + c.hash(c.path[len(c.keys)])
	if _, found := c.seen[hash]; !found {
		c.seen[hash] = struct{}{}
		c.n++
	}
	return true
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
	target
	value   string // of the last one
	given   int    // how often
	unclear bool   // readers may see something else
}

func (f *finder) add(given *field) {
	if !f.read(given) {
		f.unclear = true
	}
	same := len(f.path) == len(f.keys)
	for i := range min(len(f.path), len(f.keys)) {
		if !bytes.Equal(f.path[i], f.keys[i]) {
			if len(f.path[i]) > 0 && len(f.keys[i]) > 0 {
				return
			}
			same = false
		}
	}
	switch {
	case len(f.path) == 0:
	case !same || given.file:
		f.unclear = true // it is an array, part of one, or holds others
	default:
		f.given++
		f.value = string(bytes.Trim(given.value, blanks+"\x00"))
	}
}

// blanks are what isspace in C and \s in Ruby take for white space.
const blanks = " \t\n\v\f\r"

// result returns the last value, folded, and "" if there is none or readers may see
// something else. If the form is long, PHP has not read its end.
func (f *finder) result(folding fold.Func, long bool) string {
	list := slices.ContainsFunc(f.keys, func(key []byte) bool { return len(key) == 0 })
	if f.unclear || f.given > 1 && (long || list) {
		return ""
	}
	return folding(f.value)
}

// errUnclear says that readers may differ about a form of parts.
var errUnclear = errors.New("the form is not written as browsers write it")

// longestHead is how many bytes the header of a part may have. Rack 3 ignores a
// Content-Disposition of more than 1536 bytes, PHP cuts lines at 5120.
const longestHead = 1400

var (
	// partsType is a Content-Type that all readers take the same boundary from.
	partsType = regexp.MustCompile(`^(?i:multipart/form-data); *(?i:charset="?utf-8"?; *)?boundary=(?:([0-9A-Za-z'+_.-]{1,70})|"([0-9A-Za-z'+_.-]{1,70})")(?i:; *charset="?utf-8"?)?$`)

	// disposition is a Content-Disposition that all readers take the same name from.
	disposition = regexp.MustCompile(`^(?i:content-disposition): form-data; name="([^"\\]+)"(; filename="[^"\\]*")?$`)

	partHeader = regexp.MustCompile(`^[0-9A-Za-z-]+:`)
)

// splitParts splits a form of parts. It understands only what no reader can
// understand in another way: boundaries are whole lines and stand nowhere else,
// nothing comes before the first or after the last of them, and each part has one
// name in the spelling of browsers.
func (b *Body) splitParts(each func(field)) error {
	found := partsType.FindStringSubmatch(b.ContentType)
	if found == nil {
		return errUnclear
	}
	opening := []byte("--" + found[1] + found[2] + "\r\n")
	delimiter := opening[:len(opening)-2]
	rest, ok := bytes.CutSuffix(bytes.TrimSuffix(b.Data, []byte("\r\n")), []byte(string(delimiter)+"--"))
	if !ok {
		return errUnclear
	}
	for len(rest) > 0 {
		if rest, ok = bytes.CutPrefix(rest, opening); !ok {
			return errUnclear
		}
		end := bytes.Index(rest, delimiter)
		if end < 0 {
			end = len(rest)
		}
		part, whole := bytes.CutSuffix(rest[:end], []byte("\r\n"))
		head, value, parted := bytes.Cut(part, []byte("\r\n\r\n"))
		name, file := partName(head)
		if !whole || !parted || name == nil {
			return errUnclear
		}
		each(field{name: name, value: value, file: file})
		rest = rest[end:]
	}
	return nil
}

// partName returns the name that the header of a part gives its field, or nil if
// readers may differ about it, and whether the part is a file.
func partName(head []byte) (name []byte, file bool) {
	lower := bytes.ToLower(head)
	if len(head) > longestHead || bytes.Count(lower, []byte("content-disposition")) != 1 ||
		bytes.Contains(lower, []byte("content-transfer-encoding")) {
		return nil, false
	}
	for line := range bytes.SplitSeq(head, []byte("\r\n")) {
		if bytes.ContainsFunc(line, func(r rune) bool { return r < ' ' || r == 0x7f }) || !partHeader.Match(line) {
			return nil, false
		}
		if found := disposition.FindSubmatch(line); found != nil {
			name, file = found[1], found[2] != nil
		}
	}
	names := 1
	if file {
		names = 2
	}
	if bytes.Count(lower, []byte("name=")) != names {
		return nil, false // Rack 2 looks for a name within the file's, too
	}
	return name, file
}
