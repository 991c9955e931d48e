// Package body reads from a request's body what it will cost and whom it is
// about, as the application behind would read it. It knows no HTTP server: it
// is given the whole body, and says so when it cannot make sense of it.
package body

import (
	"bytes"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/url"
	"strings"
)

// A Body is a body read to its end, with what its header says of it.
type Body struct {
	ContentType     string
	ContentEncoding string
	Data            []byte
}

// Items returns how many items the body asks for: the length of the array at
// path in JSON, how often a field of that name stands in a form, and otherwise
// 1. What is ambiguous counts as the most that it may mean to somebody. It
// returns false if the body cannot be understood, and may mean anything.
func (b Body) Items(path Path) (n int, ok bool) {
	if !b.plain() {
		return 0, false
	}
	n, media := 1, b.media()
	if media == urlencoded || media == formData {
		var fields items
		if err := b.fields(media, func(name string, _ io.Reader) { fields.count(name, path.text) }); err != nil {
			return 0, false
		}
		n = max(1, fields.n)
		// Some applications read JSON whatever it is called.
		if media == formData || !looksLikeJSON(b.Data) {
			return n, true
		}
	}
	if len(bytes.TrimSpace(b.Data)) == 0 {
		return n, true
	}
	inJSON, ok := jsonItems(b.Data, path)
	if !ok && media == urlencoded {
		return n, true
	}
	return max(n, inJSON), ok
}

// Field returns the value of a form field, trimmed and in lower case. It is ""
// if there is none, or more than one, since the application may read another
// than is read here.
func (b Body) Field(name string) string {
	if !b.plain() {
		return ""
	}
	const longest = 4096
	found, value := 0, ""
	err := b.fields(b.media(), func(field string, content io.Reader) {
		if field != name {
			return
		}
		found++
		if text, err := io.ReadAll(io.LimitReader(content, longest)); err == nil {
			value = string(text)
		}
	})
	if err != nil || found != 1 {
		return ""
	}
	return strings.ToLower(strings.TrimSpace(value))
}

const (
	urlencoded = "application/x-www-form-urlencoded"
	formData   = "multipart/form-data"
)

func (b Body) media() string {
	media, _, _ := mime.ParseMediaType(b.ContentType)
	return media
}

// plain reports whether the data is what the application will see.
func (b Body) plain() bool {
	return b.ContentEncoding == "" || strings.EqualFold(b.ContentEncoding, "identity")
}

// fields calls f for each field of a form, in order.
func (b Body) fields(media string, f func(name string, value io.Reader)) error {
	switch media {
	case urlencoded:
		for pair := range strings.SplitSeq(string(b.Data), "&") {
			name, value, _ := strings.Cut(pair, "=")
			if pair != "" {
				f(unescape(name), strings.NewReader(unescape(value)))
			}
		}
		return nil
	case formData:
		return b.parts(f)
	}
	return fmt.Errorf("not a form: %q", b.ContentType)
}

func (b Body) parts(f func(name string, value io.Reader)) error {
	_, parameters, err := mime.ParseMediaType(b.ContentType)
	if err != nil {
		return err
	}
	reader := multipart.NewReader(bytes.NewReader(b.Data), parameters["boundary"])
	for {
		part, err := reader.NextRawPart()
		if err == io.EOF { // wrapped, it means that the form breaks off
			return nil
		}
		if err != nil {
			return err
		}
		f(part.FormName(), part)
	}
}

// unescape leaves what is badly escaped as it is, as most applications do.
func unescape(text string) string {
	if plain, err := url.QueryUnescape(text); err == nil {
		return plain
	}
	return text
}

// items counts how many items the fields of a form make.
type items struct {
	n    int
	seen map[string]bool
}

// count takes a field for an item if it is called name or name[], and all that
// are called name[x] or name[x][anything] for one.
func (i *items) count(field, name string) {
	rest, ok := strings.CutPrefix(field, name)
	if !ok || name == "" {
		return
	}
	index, _, indexed := strings.Cut(rest, "]")
	switch {
	case rest == "", index == "[":
		i.n++
	case indexed && strings.HasPrefix(index, "[") && !i.seen[index]:
		if i.seen == nil {
			i.seen = make(map[string]bool)
		}
		i.seen[index] = true
		i.n++
	}
}
