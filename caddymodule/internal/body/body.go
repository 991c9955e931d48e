// Package body finds out from a request's body how many items it asks for and
// which account it is about, as the application behind the server will read it.
//
// [Look] reads the beginning of a body ahead and hands on every byte of it.
// [Body.Items] counts the elements of a JSON array or the repetitions of a form
// field. [Body.Field] returns the value of a form field.
//
// # Forms
//
// Applications disagree about forms. Each form is therefore read several times:
// as PHP reads it and as Rack (Ruby on Rails) 2 and 3 read it. Items takes the
// highest count. Field takes a value that all readings agree on, where a reading that
// does not see the field has no say. A field that two readings see with
// different values, or that stands in the form twice, is [Ambiguous].
//
//	in the request                PHP 8                 Rack 2 and 3              here
//	rows.x, rows x, rows[x        rows_x                rows.x, "rows x", rows→x  all of them
//	" rows", +rows, %20rows       rows                  " rows"                   rows
//	rows%00x                      rows                  rows\0x                   both
//	[rows], rows]                 no field, rows]       rows (2), as sent (3)     both
//	rows[[a]                      rows→"[a"             rows→a (2), "[a" (3)      both
//	rows[a]b[c]                   rows→a                rows→a→b→c                both
//	rows[]a                       rows, one more        rows, one more with a     both
//	a=1;b=2                       a is "1;b=2"          the same; a and b (1)     both
//	a=%zz                         a is "%zz"            an error                  PHP's
//	a=1&a=2                       the last              the last                  2 items, the last
//	a=1&a[]=2                     the last              an error                  2 items, ambiguous
//	a[]=1&a=2                     the last              the last                  2 items, the last
//	over 1000 fields, 64 levels   the first ones        up to 4096, 32 or 100     all of them; a field given twice is ambiguous
//	no Content-Type               no form               a form (POST)             both
//	form type, space, more        a form                no form                   a form
//	form type, tab, semicolon     no form               a form                    a form
//	multipart without boundary    no form               read as URL-encoded       not understood; Field as Rack
//	multipart/mixed, /related     no form               a form                    not understood; Field as Rack
//	two Content-Types, a comma    the first             the first             not understood; Field as the first
//	Content-Encoding              ignored               ignored                   not understood; Field as sent
//
// In forms of parts (multipart/form-data):
//
//	in the request                PHP 8                 Rack 2 and 3              here
//	name='rows[]'                 rows[]                'rows (2), as sent (3)    all of them
//	name=rows[]                   rows[]                rows (2), rows[] (3)      both
//	x=':; name=a                  no name               no name (2), a (3)        a
//	name="a"; name="b"            b                     b                         b
//	attachment; name="a"          a                     a                         a
//	name*=utf-8''a                no name               no name                   no name
//	name="a (no closing quote)    a                     no name                   a
//	Content-ID: a                 nothing               a, if no name is given    both
//	folded header lines           joined                joined                    joined
//	lines that end in LF          read                  an error                  not understood; Field as PHP
//	blanks around boundaries      not a boundary        a boundary (2)            both; not understood if around all
//	a boundary within a line      not a boundary        a boundary (2)            both
//	a boundary over 70 bytes      read                  an error (3)              not understood; Field as PHP
//	fields after the last part    read                  not read                  read
//	no closing boundary           read to the end       an error                  not understood; Field as PHP
//	a line over 5120 bytes        several lines         one line                  both
//
// An error of Rack's answers the request with 400, so that nothing is done. PHP
// is taken to be configured as it is delivered, without mbstring's
// encoding_translation. Query strings are not read.
//
// # JSON
//
// A body that is not a form is read as JSON, whatever its Content-Type says. A
// URL-encoded form that begins like JSON is read as both. A key that stands
// twice in an object counts as the longer value. An object with numbered keys,
// {"0": ..., "1": ...}, counts like an array, as PHP and Rails treat it.
//
// # Time and memory
//
// Reading takes time in proportion to the length of the body. Items keeps a hash
// for each distinct index in a form, such as a in rows[a]; Field keeps the value.
package body

import (
	"bytes"
	"strings"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/fold"
)

// A Body is a request's body that was read to its end, and what its header says
// of it. A nil *Body is one that was not read. The zero value is an empty body.
// Methods may be called concurrently.
type Body struct {
	// ContentType and ContentEncoding are header fields as they came. Values
	// of a repeated field are joined with ", ".
	ContentType, ContentEncoding string

	Data []byte
}

// Within returns the body, or nil if it is longer than most bytes: each zone
// looks no further than its own limit, even if another made us read on.
func (b *Body) Within(most int64) *Body {
	if b == nil || int64(len(b.Data)) > most {
		return nil
	}
	return b
}

// Items returns how many items the body asks for, at least 1: the length of the
// JSON array at path, how often a form field of that name is repeated, and
// otherwise 1. If readings differ, it is the highest count. Items returns false
// if the body cannot be understood, and may mean anything.
//
// In a form, the path data.rows finds the fields called data.rows as well as
// those called data[rows].
func (b *Body) Items(path Path) (n int, understood bool) {
	if b == nil {
		return 0, false
	}
	if len(b.Data) == 0 {
		return 1, true
	}
	if !b.plain() || strings.Contains(b.ContentType, ",") {
		return 0, false
	}
	n = 1
	kind, readings := b.readings()
	for _, reading := range readings {
		counters := path.counters(reading.dialects)
		err := reading.split(b.Data, func(name, _ []byte) {
			for i := range counters {
				counters[i].add(name)
			}
		})
		if err != nil {
			return 0, false
		}
		for i := range counters {
			n = max(n, counters[i].n)
		}
	}
	if kind == multipart || kind == urlencoded && !looksLikeJSON(b.Data) || len(bytes.TrimSpace(b.Data)) == 0 {
		return n, true
	}
	inJSON, ok := jsonItems(b.Data, path)
	if !ok && kind == urlencoded {
		return n, true
	}
	return max(n, inJSON), ok
}

// A State says how sure the value of a form field is.
type State uint8

const (
	// Unread means that the body was not read: it is too long or broken, came
	// too slowly, is compressed, or is no form. It is the zero value.
	Unread State = iota

	// Absent means that the form was read whole and has no such field, or only
	// an empty one. A request without a body is such a form.
	Absent

	// Ambiguous means that the field is given as an array, or that PHP and
	// Rack read different values.
	Ambiguous

	// Found means that there is one value.
	Found
)

// String implements fmt.Stringer.
func (s State) String() string {
	return [...]string{"unread", "absent", "ambiguous", "found"}[s]
}

// Field is [Body.FoldedField] with [fold.Plain].
func (b *Body) Field(name string) (string, State) { return b.FoldedField(name, fold.Plain) }

// FoldedField returns the value of a form field, folded. Blanks and NUL bytes around it
// are dropped before. Readings that differ and fold to the same text agree. A value that
// cannot be folded for sure is Ambiguous. The text is "" unless the state is Found, and never "" then.
// Fields may be nested: user[login].
//
// If only one of PHP and Rack sees the field, its value is returned: requests
// for accounts cannot get around their limit by an odd spelling, and such a
// request costs the account no more than a plain one. For the same reason a
// value found in a broken or compressed form is returned.
func (b *Body) FoldedField(name string, folding fold.Func) (string, State) {
	if b == nil {
		return "", Unread
	}
	if len(b.Data) == 0 {
		return "", Absent
	}
	kind, readings := b.readings()
	value, state := "", Absent
	if kind != urlencoded && kind != multipart || !b.plain() {
		state = Unread
	}
	for _, reading := range readings {
		finders := findersOf(name, reading.dialects)
		fields := 0
		err := reading.split(b.Data, func(name, value []byte) {
			fields++
			for i := range finders {
				finders[i].add(name, value)
			}
		})
		if err != nil && state == Absent {
			state = Unread
		}
		for i := range finders {
			switch v, s := finders[i].result(folding, fields > phpFields); {
			case s == Ambiguous, s == Found && state == Found && v != value:
				return "", Ambiguous
			case s == Found:
				value, state = v, Found
			}
		}
	}
	return value, state
}

// phpFields is how many fields of a form PHP reads (max_input_vars).
const phpFields = 1000

// plain reports whether the data is not compressed.
func (b *Body) plain() bool {
	return b.ContentEncoding == "" || strings.EqualFold(b.ContentEncoding, "identity")
}
