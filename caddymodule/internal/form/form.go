// Package form reads what a request asks for: the values of fields and the lengths of
// arrays, in a query string and in a body, each read once. Begin with [Plan], which says
// what is wanted, and [Plan.Read].
//
// It vouches for what is plain and says [Unclear] for the rest, so that no application
// sees a field that was called absent, or another value. It knows no habits of PHP, Rack
// or any other reader.
//
// # Names
//
// Only letters and digits of a name count, in any case: user[password], user.password,
// User_Password and {"user": {"password": ...}} are one name. Nor does an index count,
// which is a key without a letter: rows[0][id] and rows[][id] are one name. A field that
// is given with two different values is unclear, and so is one that holds an array, an
// object or a file, or has a type after a colon.
//
// A name in a form is not plain if it is badly escaped, is longer than 1 KiB, has control
// bytes, a semicolon, brackets that do not match or more than 8 of them. Then each field is
// unclear that begins with what it has before the first of its brackets and control bytes, or
// with which that begins. A name of up to 128 bytes that is not UTF-8 makes each field unclear
// of which it has the letters in the same order. A longer one is not plain, and counts up to there.
//
// # Bodies
//
// A body is read by its type:
//
//   - application/x-www-form-urlencoded, or no type: pairs are split at & and at semicolons.
//     What is next to a semicolon or has a NUL byte or a # is unclear. If it begins with <, it
//     is read like other types, too.
//   - multipart/form-data, as browsers and HTTP libraries write it; see parts.go.
//   - JSON, by its type or because it begins with { or [, also after comments. Several
//     documents may follow each other; then arrays are unclear. The first key of a field may be
//     missing, as Rails adds it. All is unclear if it does not parse or has more than 512 levels.
//     An array that is given twice counts with all its elements.
//   - Others: a field is unclear if its name, or its last key, stands somewhere as "name",
//     <name or name=. Arrays are unclear.
//   - All but forms: a field is unclear, too, if it has a pair, since Yii and many scripts give
//     any body to PHP's parse_str, and Ruby's CGI splits it at semicolons, too.
//
// All is unclear in a body that is compressed, has more than 10,000 fields, names two charsets or
// one that is no superset of ASCII, or has a type that is nearly a form, or YAML, CSV or
// the like. With such a charset all fields are unclear, even without a body.
//
// # Time and memory
//
// The time is proportional to the length. A reading takes less than 1 MiB of memory,
// however long the body is: values of more than 4 KiB are not kept, but unclear.
package form

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"regexp"
	"slices"
	"strings"
)

const (
	mostFields   = 10_000
	mostBrackets = 8
	mostLevels   = 512
	longestName  = 1 << 10
	longestField = 128
	longestValue = 4 << 10
	mostWanted   = 63 // one bit each, and one for what hides names in XML
)

// A Plan is what is wanted of requests. It is made while a config is loaded; after that,
// [Plan.Read] may be called concurrently. The zero Plan wants nothing.
type Plan struct {
	wanted []wanted
	fields uint64     // which of wanted are fields
	names  dictionary // of fields, and the first keys of arrays
	words  dictionary // the last keys of fields
	bare   dictionary // fields without their first key
}

// wanted is a field or an array. Two that are equal are one.
type wanted struct {
	field string // its letters
	array string // its path, as it was given
	keys  []string
}

// A Field is a field that a Plan wants.
type Field uint8

// An Array is an array that a Plan wants counted.
type Array uint8

// Field adds a field by its name in forms, such as pwd or user[password].
func (p *Plan) Field(name string) (Field, error) {
	keys, plain := split(nil, []byte(name))
	good := len(keys) > 0 && plain && len(name) <= longestField
	var letters, last []byte
	for i, key := range keys {
		valid := false
		last, valid = appendLetters(nil, key)
		index := isIndex(last)
		good = good && valid && !(index && (i == 0 || i == len(keys)-1))
		if !index {
			letters = append(letters, last...)
		}
	}
	if !good {
		return 0, fmt.Errorf("invalid field %q: want its name in a form, which has a letter, and no index at its end, such as pwd or user[password]", name)
	}
	i, found, err := p.add(wanted{field: string(letters)})
	if err == nil && !found {
		p.fields |= 1 << i
		p.names.add(i, letters)
		p.words.add(i, last)
		if first, _ := appendLetters(nil, keys[0]); len(first) < len(letters) {
			p.bare.add(i, letters[len(first):])
		}
	}
	return Field(i), err
}

// Array adds an array by its path: keys with dots between them, and # for each element of an
// array, such as data.rows or orders.#.lines. A dot in a key is written as an underscore.
// With the path "", the array is the whole body.
func (p *Plan) Array(path string) (Array, error) {
	w := wanted{array: "." + path}
	for key := range strings.SplitSeq(path, ".") {
		letters, valid := appendLetters(nil, []byte(key))
		switch {
		case path == "":
			continue
		case key == "#":
			letters = []byte(key)
		case isIndex(letters), !valid, hasControl([]byte(path)), strings.ContainsAny(path, `*?|@!{}()[]\`):
			return 0, fmt.Errorf("invalid path %q: want names with dots between them, and # for each element, such as data.rows or orders.#.lines", path)
		}
		w.keys = append(w.keys, string(letters))
	}
	i, found, err := p.add(w)
	if err == nil && !found && len(w.keys) > 0 && w.keys[0] != "#" {
		p.names.add(i, []byte(w.keys[0]))
	}
	return Array(i), err
}

func (p *Plan) add(w wanted) (i int, found bool, err error) {
	same := func(other wanted) bool { return w.field == other.field && w.array == other.array }
	if i := slices.IndexFunc(p.wanted, same); i >= 0 {
		return i, true, nil
	}
	if len(p.wanted) == mostWanted {
		return 0, false, fmt.Errorf("too many fields and arrays: want at most %d different ones", mostWanted)
	}
	if len(p.wanted) == 0 {
		p.words.add(mostWanted, []byte("!entity"))
		p.words.add(mostWanted, []byte("!attlist"))
	}
	p.wanted = append(p.wanted, w)
	return len(p.wanted) - 1, false, nil
}

// A State is what is known of a field.
type State uint8

// The states of a field.
const (
	Absent  State = iota // no reader sees it
	One                  // who sees it sees this value
	Unclear              // readers may differ about it
)

// A Reading is what a request has of what a Plan wants. It is not safe for concurrent use.
type Reading struct {
	plan           *Plan
	found, unclear uint64
	values         []string // of fields that are found
	items          []int

	keys  [][]byte // of the name at hand
	value []byte   // of the part at hand
	room  [longestHead]byte
}

// Read begins a reading, in which all is absent.
func (p *Plan) Read() *Reading {
	n := len(p.wanted)
	return &Reading{plan: p, values: make([]string, n), items: make([]int, n)}
}

// Field returns a field's value, as it was sent, if its state is One.
func (r *Reading) Field(f Field) (value string, state State) {
	switch {
	case r.unclear&(1<<f) != 0:
		return "", Unclear
	case r.found&(1<<f) != 0:
		return r.values[f], One
	}
	return "", Absent
}

// Carries reports whether the request has one of these fields, or may have it.
func (r *Reading) Carries(fields ...Field) bool {
	return slices.ContainsFunc(fields, func(f Field) bool { return (r.found|r.unclear)&(1<<f) != 0 })
}

// Items returns how many elements an array in the body has, and 0 if there is none. In a
// form, they are the fields that the path leads to. If it is not certain, n means nothing.
func (r *Reading) Items(a Array) (n int, certain bool) {
	return r.items[a], r.unclear&(1<<a) == 0
}

// all are the bits of what is wanted.
func (p *Plan) all() uint64 { return 1<<len(p.wanted) - 1 }

// note notes a value of fields.
func (r *Reading) note(fields uint64, value []byte, certain bool) {
	for fields := fields; fields != 0; fields &= fields - 1 {
		f := bits.TrailingZeros64(fields)
		switch {
		case !certain, r.found&(1<<f) != 0 && r.values[f] != string(value):
			r.unclear |= 1 << f
		case r.found&(1<<f) == 0:
			r.found, r.values[f] = r.found|1<<f, string(value)
		}
	}
}

// Query reads a query string, as it came. A reading may have several.
func (r *Reading) Query(raw string) {
	if raw != "" {
		q := pairs{r: r, wanted: r.plan.fields}
		q.write([]byte(raw))
		q.end()
	}
}

// Body reads a body, which may be empty, and of which the length is known or -1. contentType and contentEncoding
// are header fields, with ", " between the values of one that is repeated. If reading it fails, all is unclear.
func (r *Reading) Body(contentType, contentEncoding string, length int64, body io.Reader) {
	const least, most = 2 << 10, 32 << 10
	size := most
	if 0 <= length && length < most {
		size = max(least, int(length))
	}
	if err := r.body(strings.Trim(contentType, " \t"), contentEncoding, bufio.NewReaderSize(body, size)); !errors.Is(err, io.EOF) {
		r.unclear = r.plan.all()
	}
}

// errUnclear is why a reading ends early: all is unclear.
var errUnclear = errors.New("unclear")

const urlencoded = "application/x-www-form-urlencoded"

// body returns io.EOF if all is clear but what it has noted.
func (r *Reading) body(contentType, contentEncoding string, in *bufio.Reader) error {
	lower := strings.ToLower(contentType)
	media, _, _ := strings.Cut(lower, ";")
	media = strings.TrimRight(media, " \t")
	ascii := hasASCII([]byte(lower))
	if !ascii {
		r.unclear |= r.plan.fields // Jetty and Django read the query so, too
	}
	if _, err := in.Peek(1); err != nil || len(r.plan.wanted) == 0 {
		return err // there is none
	}
	form := media == urlencoded || media == ""
	switch {
	case !ascii, contentEncoding != "" && !strings.EqualFold(contentEncoding, "identity"):
		return errUnclear
	case media == "multipart/form-data":
		return r.parts(contentType, in)
	case form && otherTypes.MatchString(lower[len(media):]), !form && otherTypes.MatchString(lower):
		return errUnclear
	}

	if err := skipBlanks(in); err != nil {
		return err
	}
	start, err := in.Peek(in.Size())
	if len(start) == 0 {
		return err
	}
	var parsers []parser
	first := start[len(comments.Find(start)):]
	json := strings.Contains(media, "json") || len(first) > 0 && (first[0] == '{' || first[0] == '[' && start[0] != '#') || len(first) == 0 && len(start) == in.Size()
	if json {
		parsers = append(parsers, &document{r: r, inside: []level{{place: place{alive: r.plan.fields}, bare: place{alive: r.plan.fields}, each: r.plan.all() &^ r.plan.fields}}})
	}
	// What JSON has before its first & is no name.
	q := &pairs{r: r, wanted: r.plan.fields &^ r.plan.short(), loose: !form, skip: json, inValue: json}
	if parsers = append(parsers, q); form {
		q.wanted = r.plan.all()
	}
	// Applications that read XML from the body do not ask for its type.
	if !json && (!form || start[0] == '<' || bytes.HasPrefix(start, ebcdic)) {
		declaration, _, ended := bytes.Cut(start, []byte("?>"))
		if bytes.HasPrefix(start, ebcdic) || bytes.HasPrefix(start, []byte("<?xml")) && (!ended || !hasASCII(bytes.ToLower(declaration))) {
			return errUnclear
		}
		if !form {
			r.unclear |= r.plan.all() &^ r.plan.fields
		}
		words := r.plan.fields | hiding
		parsers = append(parsers, &text{r: r, words: words, at: place{alive: words}})
	}
	for r.unclear != r.plan.all() {
		data, err := next(in)
		for _, p := range parsers {
			if p.write(data); err != nil {
				p.end()
			}
		}
		if err != nil {
			return err
		}
	}
	return errUnclear
}

// otherTypes are nearly a form, or types that gin, Spring and PostgREST read wherever they read JSON, and in which
// names stand in other ways. Werkzeug knows one with url-encoded.
var otherTypes = regexp.MustCompile(`,|multipart|url-?encoded|yaml|toml|msgpack|cbor|smile|bson|csv`)

// comments are what some readers skip before JSON, as far as they are seen: Ruby's and Gson. After those with #,
// honest text may begin with a [.
var comments = regexp.MustCompile(`^(?:\s|/(?:\*(?s:.*?)(?:\*/|$)|/[^\r\n]*|$)|#[^\r\n]*|\)(?:\]|$)(?:\}|$)(?:'|$)(?:\n|$))*`)

// A parser reads a body piece by piece. It keeps nothing of data.
type parser interface {
	write(data []byte)
	end()
}

// next returns what comes next, and an error only with nothing.
func next(in *bufio.Reader) ([]byte, error) {
	if _, err := in.Peek(1); err != nil {
		return nil, err
	}
	data, _ := in.Peek(in.Buffered())
	_, _ = in.Discard(len(data)) // it stays as it is until the next call
	return data, nil
}

// skipBlanks skips white space, byte order marks and NUL bytes, with which ASCII begins
// in UTF-16.
func skipBlanks(in *bufio.Reader) error {
	for {
		c, err := in.ReadByte()
		if err != nil {
			return err
		}
		if strings.IndexByte(" \t\r\n\v\f\x00\xef\xbb\xbf\xfe\xff", c) < 0 {
			return in.UnreadByte()
		}
	}
}

// ebcdic is how XML in EBCDIC begins.
var ebcdic = []byte("\x4c\x6f\xa7\x94")

// hasASCII reports whether a Content-Type or XML declaration, in lower case, names no
// charset, or one and that is a superset of ASCII.
func hasASCII(text []byte) bool {
	named := bytes.Count(text, []byte("charset")) + bytes.Count(text, []byte("encoding"))
	return named == 0 || named == 1 && superset.Match(text)
}

const charsets = `(?:utf-?8|us-ascii|iso-8859-\d+|windows-125\d)`

var superset = regexp.MustCompile(`(?:charset|encoding)\s*=\s*["']?` + charsets + `(?:["';?\s]|$)`)
