// Package body receives the bodies of requests, and finds out how many items they ask for and
// which account they are about, as the application behind the server will read them. Begin
// with [Store.Receive] and [Memory.Look].
//
// A [Store] keeps whole bodies until an upstream takes them, and responses until their clients
// do: in memory, and what is too long for that in a file. [Memory.Look] reads the beginning
// of a body ahead and hands on every byte of it.
// [Body.Items] counts the elements of a JSON array or the repetitions of a form
// field. [Body.Field] returns the value of a form field.
//
// # Forms
//
// PHP and Rack (Ruby on Rails) agree about a name such as rows, rows[], rows[7] or
// user[login] if neither blanks, dots, percent signs and control bytes are in it, nor a
// bracket that has no partner. A field with another name that may be the one that is looked
// for makes the form unclear:
//
//	in the request                        PHP 8                 Rack 2 and 3
//	rows.x, rows x, rows[x                rows_x                rows.x, "rows x", rows→x
//	" rows", +rows, %20rows, rows%00x     rows                  " rows", rows\0x
//	[rows], rows], rows[[a], rows[a]b[c]  none, rows→"[a"       rows, rows→a→b→c
//	a=1;b=2                               a is "1;b=2"          the same; a and b (1)
//
// The field itself may have such a name. It is found if all spell it alike.
//
// A field that is given several times is the last one, and several items. It is not found
// if another one of them is an array, or if the form has more than 1000 fields, of which
// PHP reads the first. What is badly escaped is left as it is; Rack answers that with an
// error. A body without a type is read as a form, as Rack does. With a type that only
// begins like one of a form, or with two, it is unclear; so is a compressed one.
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
// otherwise 1. Items returns false if the body cannot be understood, and may mean anything.
//
// In a form, the path data.rows finds the field data[rows].
func (b *Body) Items(path Path) (n int, understood bool) {
	switch {
	case b.Empty():
		return 1, true
	case !b.readable():
		return 0, false
	}
	counter, clear := path.counter(), true
	kind, err := b.form(func(given field) { clear = counter.add(&given) && clear })
	if err != nil || !clear {
		return 0, false
	}
	n = max(1, counter.n)
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
// field or only an empty one, or if PHP and Rack may read different values. The value is
// never "" if it is found, and [fold.Odd] for a name that nobody types.
// Fields may be nested: user[login].
func (b *Body) Field(name string, folding fold.Func) (value string, found bool) {
	if !b.readable() {
		return "", false
	}
	f, fields := finder{target: targetOf([]byte(name))}, 0
	kind, err := b.form(func(given field) {
		fields++
		f.add(&given)
	})
	if kind == noForm || err != nil {
		return "", false
	}
	value = f.result(folding, fields > phpFields)
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
