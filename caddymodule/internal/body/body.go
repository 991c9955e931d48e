// Package body finds out from a request's body how many items it asks for and which
// account it is about, as the application behind the server will read it. Begin with
// [Memory.Look].
//
// [Look] reads the beginning of a body ahead and hands on every byte of it.
// [Body.Items] counts the elements of a JSON array or the repetitions of a form
// field. [Body.Field] returns the value of a form field.
//
// # Forms
//
// Applications disagree about forms. A URL-encoded form is therefore read several
// times: as PHP reads it and as Rack (Ruby on Rails) 2 and 3 read it. Items takes the
// highest count. Field takes a value that all readings agree on, where a reading that
// does not see the field has no say. A field that two readings see with
// different values is not found.
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
//	a=1&a[]=2                     the last              an error                  2 items, not found
//	a[]=1&a=2                     the last              the last                  2 items, the last
//	over 1000 fields, 64 levels   the first ones        up to 4096, 32 or 100     all of them; a field given twice is not found
//	no Content-Type               no form               a form (POST)             both
//	form type, space, more        a form                no form                   a form
//	form type, tab, semicolon     no form               a form                    a form
//	two Content-Types, a comma    the first             the first                 not understood
//	Content-Encoding              ignored               ignored                   not understood
//
// Forms of parts (multipart/form-data) have many more such differences. They are
// understood only as browsers write them:
//
//   - The Content-Type has a boundary of up to 70 letters, digits and '+_.-, and at most
//     charset=utf-8 beside it.
//   - Boundaries are whole lines that end in CRLF. They stand nowhere else, and
//     nothing comes before the first or after the last one.
//   - Each part has one Content-Disposition: form-data; name="...", with at most
//     ; filename="..." after it. Both are printable, without quotes, backslashes and
//     "name=". There is no Content-Transfer-Encoding, and the header has up to 1400 bytes.
//
// Names of parts are read as those of URL-encoded forms. Files count as items, and are
// no values.
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
	switch {
	case b.Empty():
		return 1, true
	case !b.readable():
		return 0, false
	}
	n = 1
	kind, readings := b.readings()
	for _, reading := range readings {
		counters := path.counters(reading.dialects)
		err := reading.split(func(given field) {
			for i := range counters {
				counters[i].add(given.name)
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

// Field returns the value of a form field, folded, without blanks and NUL bytes around
// it. It returns false if the body was not read, is compressed or no form, has no such
// field or only an empty one, or if PHP and Rack may read different values. Readings that
// differ and fold to the same text agree. The value is never "" if it is found, and
// [fold.Odd] for a name that nobody types.
// Fields may be nested: user[login].
//
// If only one of PHP and Rack sees the field, its value is returned: requests
// for accounts cannot get around their limit by an odd spelling, and such a
// request costs the account no more than a plain one.
func (b *Body) Field(name string, folding fold.Func) (value string, found bool) {
	if !b.readable() {
		return "", false
	}
	_, readings := b.readings()
	for _, reading := range readings {
		finders, fields := findersOf(name, reading.dialects), 0
		err := reading.split(func(given field) {
			fields++
			for i := range finders {
				finders[i].add(given)
			}
		})
		if err != nil {
			return "", false
		}
		for i := range finders {
			switch v, sure := finders[i].result(folding, fields > phpFields); {
			case !sure, v != "" && value != "" && v != value:
				return "", false
			case v != "":
				value = v
			}
		}
	}
	return value, value != ""
}

// phpFields is how many fields of a form PHP reads (max_input_vars).
const phpFields = 1000

// Empty reports whether the request has no body.
func (b *Body) Empty() bool { return b != nil && len(b.Data) == 0 }

// readable reports whether the body was read, is not compressed, and has one type.
func (b *Body) readable() bool {
	return b != nil && (b.ContentEncoding == "" || strings.EqualFold(b.ContentEncoding, "identity")) &&
		!strings.Contains(b.ContentType, ",")
}
