package form

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"regexp"
)

// The form of parts that is read has nothing that readers take in different ways:
//
//   - The Content-Type has a boundary of up to 70 letters, digits and '()+_./:=-, and at
//     most charset=utf-8 beside it.
//   - The boundary stands nowhere but in its own lines, which end in CRLF. Nothing comes
//     before the first or after the last of them.
//   - The header of a part has up to 1400 bytes in whole lines, and one
//     Content-Disposition: form-data; name=..., then filename=... and filename*=..., if it
//     is a file. Names are in double quotes or words, without percent signs, encoded words
//     and backslashes; a filename may have these. "name=" stands nowhere else.
//   - Its Content-Transfer-Encoding is binary, 8bit, 8-bit or 7bit, and its Content-Type neither
//     multipart nor in a charset that is no superset of ASCII. It has no Content-Encoding, and its name
//     is not _charset_. The value of one of JSON is a text without escapes.

// partsType is the Content-Type.
var partsType = regexp.MustCompile(`^(?i:multipart/form-data) *; *(?i:charset="?utf-?8"? *; *)?(?i:boundary)=(?:([0-9A-Za-z'()+_./:=-]{1,70})|"([0-9A-Za-z'()+_./:=-]{1,70})")(?i: *; *charset="?utf-?8"?)?;?$`)

// longestHead is how long the header of a part may be. Rack 3 ignores a longer
// Content-Disposition than 1536 bytes, PHP cuts lines at 5120.
const longestHead = 1400

// parts reads a form of parts.
func (r *Reading) parts(contentType string, in *bufio.Reader) error {
	found := partsType.FindStringSubmatch(contentType)
	if found == nil {
		return errUnclear
	}
	boundary := []byte("--" + found[1] + found[2])
	if start, err := in.Peek(len(boundary)); !bytes.Equal(start, boundary) {
		return unlessFailed(err)
	}
	_, _ = in.Discard(len(boundary))
	for n := 0; ; n++ {
		line, err := in.Peek(2)
		switch {
		case string(line) == "--":
			_, _ = in.Discard(2)
			rest, err := in.Peek(3)
			if err == io.EOF && (len(rest) == 0 || string(rest) == "\r\n") {
				return nil
			}
			return unlessFailed(err)
		case string(line) != "\r\n" || n == mostFields:
			return unlessFailed(err)
		}
		_, _ = in.Discard(2)
		if err := r.part(in, boundary); err != nil {
			return err
		}
	}
}

// unlessFailed returns errUnclear, if it is not reading that has failed.
func unlessFailed(err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return errUnclear
	}
	return err
}

// part reads a part, with the boundary that follows it.
func (r *Reading) part(in *bufio.Reader, boundary []byte) error {
	head, err := in.Peek(longestHead + 4)
	end := bytes.Index(head, []byte("\r\n\r\n"))
	if end < 0 {
		return unlessFailed(err)
	}
	name, file := r.partName(head[:end])
	if len(name) == 0 {
		return errUnclear
	}
	is := r.name(name, r.plan.all(), false, false)
	parsed := parsedType.Match(r.lower)
	if parsed {
		letters, _ := appendLetters(r.room[:0], name)
		within, _ := r.plan.names.walk(place{alive: r.plan.fields &^ is}, letters)
		r.unclear |= within.alive
	}
	if file {
		r.unclear, is = r.unclear|is, 0
	}
	_, _ = in.Discard(end + 4)

	r.value = r.value[:0]
	for {
		data, _ := in.Peek(in.Buffered())
		end := bytes.Index(data, boundary)
		if end == 0 || end > 0 && !bytes.HasSuffix(data[:end], []byte("\r\n")) {
			return errUnclear
		}
		if end > 0 {
			r.keep(is, data[:end-2])
			_, _ = in.Discard(end + len(boundary))
			value := r.value
			if parsed {
				value = bytes.Trim(value, `"`)
			}
			r.note(is, value, len(r.value) <= longestValue && (!parsed || plainText.Match(r.value)))
			return nil
		}
		// A boundary may begin in what has been read, and CRLF comes before it.
		rest := min(len(data), len(boundary)+1)
		r.keep(is, data[:len(data)-rest])
		_, _ = in.Discard(len(data) - rest)
		if _, err := in.Peek(rest + 1); err != nil {
			return unlessFailed(err)
		}
	}
}

// keep keeps up to one byte more of a value than is read, if it is that of a field.
func (r *Reading) keep(is uint64, data []byte) {
	if is != 0 {
		r.value = append(r.value, data[:min(len(data), longestValue+1-len(r.value))]...)
	}
}

// partName returns the name that a part has by its header, or nil if it is not plain, and
// whether the part is a file.
func (r *Reading) partName(head []byte) (name []byte, file bool) {
	r.lower = r.lower[:0]
	for _, c := range head {
		if 'A' <= c && c <= 'Z' {
			c |= 0x20
		}
		r.lower = append(r.lower, c)
	}
	names := 0
	for from := 0; from <= len(head); {
		end := bytes.Index(head[from:], []byte("\r\n"))
		if end < 0 {
			end = len(head) - from
		}
		line, lower := head[from:from+end], r.lower[from:from+end]
		from += end + 2
		colon := bytes.IndexByte(line, ':')
		if colon < 0 || hasControl(line) || !wholeWord.Match(line[:colon]) {
			return nil, false
		}
		value, lower := bytes.TrimLeft(line[colon+1:], " "), bytes.TrimLeft(lower[colon+1:], " ")
		switch {
		case bytes.EqualFold(line[:colon], []byte("content-disposition")):
			if name, names = fieldName(value); name == nil {
				return nil, false
			}
		case bytes.EqualFold(line[:colon], []byte("content-transfer-encoding")):
			switch string(lower) {
			case "binary", "8bit", "8-bit", "7bit":
			default:
				return nil, false
			}
		case bytes.EqualFold(line[:colon], []byte("content-encoding")), // which aiohttp used to decode
			bytes.HasPrefix(lower, []byte("multipart")) || !hasASCII(lower):
			return nil, false
		}
	}
	// Some readers look for these in the whole header.
	if bytes.Count(r.lower, []byte("content-disposition")) != 1 || bytes.Count(r.lower, []byte("name="))+bytes.Count(r.lower, []byte("name*")) != names {
		return nil, false
	}
	return name, names > 1
}

const word = `[0-9A-Za-z_.%+!~-]+`

var (
	wholeWord = regexp.MustCompile(`^` + word + `$`)
	// parsedType is that of parts which Fastify and hapi parse.
	parsedType = regexp.MustCompile(`content-type:.*(?:json|urlencoded)`)
	// plainText is the same in JSON, but for the quotes around it.
	plainText = regexp.MustCompile(`^(?:"[^"\\\x00-\x1f]*"|[A-Za-z][^"\\\x00-\x20]*|[1-9][0-9]{0,14})$`)
	// disposition is a Content-Disposition, with the names of a field and of its file.
	disposition = regexp.MustCompile(`^form-data; *name=("[^"%\\]+"|[0-9A-Za-z_.+!~-]+)(; *filename=(?:"(?:[^"]*[^"\\])?"|` + word + `))?(; *filename\*=(?:utf-8|UTF-8)''` + word + `)?$`)
)

// fieldName returns the name in a Content-Disposition, or nil, and how many it has with those of
// the file.
func fieldName(value []byte) (name []byte, names int) {
	found := disposition.FindSubmatchIndex(value)
	if found == nil {
		return nil, 0
	}
	name, names = bytes.Trim(value[found[2]:found[3]], `"`), 1
	for _, at := range []int{found[4], found[6]} {
		if at >= 0 {
			names++
		}
	}
	if bytes.Contains(name, []byte("=?")) || string(name) == "_charset_" { // in which Jetty reads the values of all parts
		return nil, 0
	}
	return name, names
}
