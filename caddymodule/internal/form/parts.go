package form

import (
	"bufio"
	"bytes"
	"regexp"
)

// The form of parts that is read has nothing that readers take in different ways:
//
//   - The Content-Type has a boundary of up to 70 letters, digits and '()+_./:=-, and at
//     most charset=utf-8 beside it.
//   - The boundary stands nowhere but in its own lines, which end in CRLF. Nothing comes
//     before the first or after the last of them.
//   - The header of a part has up to 1400 bytes and no lines but Content-Disposition: form-data;
//     name=..., with filename=... and filename*=... if it is a file, and, of up to 200 bytes, Content-Type
//     with a charset that is a superset of ASCII or none, Content-Length, and Content-Transfer-Encoding:
//     binary, 8bit or 7bit.
//   - Names are in double quotes or words, without percent signs and backslashes; a filename may have
//     these. No name holds another or an encoded word, or is _charset_. The value of a part of JSON is a text without escapes.

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
	if start, _ := in.Peek(len(boundary)); !bytes.Equal(start, boundary) {
		return errUnclear
	}
	_, _ = in.Discard(len(boundary))
	for n := 0; ; n++ {
		line, _ := in.Peek(2)
		switch {
		case string(line) == "--":
			_, _ = in.Discard(2)
			rest, err := in.Peek(3)
			if len(rest) == 0 || string(rest) == "\r\n" {
				return err
			}
			return errUnclear
		case string(line) != "\r\n" || n == mostFields:
			return errUnclear
		}
		_, _ = in.Discard(2)
		if !r.part(in, boundary) {
			return errUnclear
		}
	}
}

// part reads a part, with the boundary that follows it. It returns false if it is not plain.
func (r *Reading) part(in *bufio.Reader, boundary []byte) bool {
	head, _ := in.Peek(longestHead + 4)
	end := bytes.Index(head, []byte("\r\n\r\n"))
	if end < 0 {
		return false
	}
	name, file, parsed, plain := r.head(head[:end])
	if !plain {
		return false
	}
	is := r.name(name, r.plan.all(), false, false)
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
			return false
		}
		if end > 0 {
			r.value = appendUpTo(r.value, data[:end-2], longestValue)
			_, _ = in.Discard(end + len(boundary))
			value := r.value
			if parsed {
				value = bytes.Trim(value, `"`)
			}
			r.note(is, value, len(r.value) <= longestValue && (!parsed || plainText.Match(r.value)))
			return true
		}
		// A boundary may begin in what has been read, and CRLF comes before it.
		rest := min(len(data), len(boundary)+1)
		r.value = appendUpTo(r.value, data[:len(data)-rest], longestValue)
		_, _ = in.Discard(len(data) - rest)
		if _, err := in.Peek(rest + 1); err != nil {
			return false
		}
	}
}

// head returns the name of a field from the header of its part, whether it is a file, and whether Fastify and hapi
// parse it.
func (r *Reading) head(head []byte) (name []byte, file, parsed, plain bool) {
	for line := range bytes.SplitSeq(head, []byte("\r\n")) {
		low := r.room[:len(line)]
		for i, c := range line {
			if low[i] = c; 'A' <= c && c <= 'Z' {
				low[i] += 'a' - 'A'
			}
		}
		if len(line) <= longestLine && otherLine.Match(low) {
			parsed = parsed || bytes.Contains(low, []byte("json")) || bytes.Contains(low, []byte("urlencoded"))
			continue
		}
		found := disposition.FindSubmatchIndex(line)
		if found == nil || name != nil || odd(low[found[2]:found[3]]) || found[6] >= 0 && odd(low[found[6]:found[7]]) {
			return nil, false, false, false
		}
		name, file = bytes.Trim(line[found[2]:found[3]], `"`), found[4] < found[5]
	}
	return name, file, parsed, name != nil
}

// odd reports whether a name in lower case has another name, for readers that look for one in the whole header or decode
// words, ends in an escaped quote, or is that of the part in which Jetty reads the charset of all.
func odd(name []byte) bool {
	return bytes.Contains(name, []byte("=?")) || bytes.Contains(name, []byte("content-disposition")) || bytes.HasSuffix(name, []byte(`\"`)) ||
		string(bytes.Trim(name, `"`)) == "_charset_" || again.Match(name)
}

// longestLine is how long other lines of a header may be than Content-Disposition.
const longestLine = 200

const (
	word    = `[0-9A-Za-z_.%+!~-]+`
	encoded = `(?:utf-8|UTF-8)''` + word
)

var (
	// disposition has the names of a field and of its file. At each byte it has one way to go on, which Go takes
	// ten times faster.
	disposition = regexp.MustCompile(`^(?i:content-disposition): *form-data; *name=("[^"%\\[:cntrl:]]+"|[0-9A-Za-z_.+!~-]+)` +
		`((?:; *filename(?:=("[^"[:cntrl:]]*"|` + word + `)(?:; *filename\*=` + encoded + `)?|\*=` + encoded + `))?)$`)
	// otherLine is a line beside it, in lower case. aiohttp used to decode a Content-Encoding. Apps for Android call parts
	// multipart/form-data, in which nobody finds more without a boundary.
	otherLine = regexp.MustCompile(`^(?:content-length: *[0-9]+|content-transfer-encoding: *(?:binary|8-?bit|7bit)|content-type: *` +
		`(?:multipart/form-data|(?:application|audio|chemical|font|image|message|model|text|video|x-[a-z]+)/[0-9a-z_.*+-]+)(?: *; *(?:charset="?` + charsets + `"?|codecs="?[0-9a-z., +-]+"?))*)$`)
	// again is how another name begins, for readers that look for one in the whole header.
	again = regexp.MustCompile(`name *[*=]`)
	// plainText is the same in JSON, but for the quotes around it.
	plainText = regexp.MustCompile(`^(?:"[^"\\\x00-\x1f]*"|[A-Za-z][^"\\\x00-\x20]*|[1-9][0-9]{0,14})$`)
)
