package form

import (
	"bufio"
	"bytes"
	"cmp"
	"io"
	"regexp"
)

// The form of parts that is read has nothing that readers take in different ways:
//
//   - The Content-Type has a boundary of up to 70 letters, digits and '()+_./:=-, and at
//     most charset=utf-8 beside it.
//   - The boundary stands nowhere but in its own lines, which end in CRLF. Nothing comes
//     before the first or after the last of them.
//   - The header of a part has up to 1400 bytes and no lines but Content-Disposition: form-data;
//     name=..., with filename=... and filename*=... if it is a file, Content-Type with a charset that is a
//     superset of ASCII or none, Content-Length, and Content-Transfer-Encoding: binary, 8bit or 7bit.
//   - Names are in double quotes or words, without percent signs and backslashes; a filename may have
//     these. No name holds another or an encoded word, or is _charset_. The value of a part of JSON is a text without escapes.

// partsType is the Content-Type.
var partsType = regexp.MustCompile(`^(?i:multipart/form-data) *; *(?i:charset="?utf-?8"? *; *)?(?i:boundary)=(?:([0-9A-Za-z'()+_./:=-]{1,70})|"([0-9A-Za-z'()+_./:=-]{1,70})")(?i: *; *charset="?utf-?8"?)?;?$`)

// longestHead is how long the header of a part may be. Rack 3 ignores a longer
// Content-Disposition than 1536 bytes, PHP cuts lines at 5120.
const longestHead = 1400

// mostParts is how many PHP reads by default. The header of one may take 200 µs.
const mostParts = 1_020

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
		case string(line) != "\r\n" || n == mostParts:
			return unlessFailed(err)
		}
		_, _ = in.Discard(2)
		if err := r.part(in, boundary); err != nil {
			return err
		}
	}
}

// unlessFailed returns errUnclear, if it is not reading that has failed.
func unlessFailed(err error) error { return cmp.Or(ignoreEOF(err), errUnclear) }

// part reads a part, with the boundary that follows it.
func (r *Reading) part(in *bufio.Reader, boundary []byte) error {
	head, err := in.Peek(longestHead + 4)
	end := bytes.Index(head, []byte("\r\n\r\n"))
	if end < 0 {
		return unlessFailed(err)
	}
	found := plainHead.FindSubmatchIndex(head[:end])
	if found == nil || oddName.Match(head[found[2]:found[3]]) || found[6] >= 0 && oddName.Match(head[found[6]:found[7]]) {
		return errUnclear
	}
	name, file := bytes.Trim(head[found[2]:found[3]], `"`), found[4] < found[5]
	is := r.name(name, r.plan.all(), false, false)
	parsed := parsedType.Match(head[:end])
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
			r.value = appendUpTo(r.value, data[:end-2], longestValue)
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
		r.value = appendUpTo(r.value, data[:len(data)-rest], longestValue)
		_, _ = in.Discard(len(data) - rest)
		if _, err := in.Peek(rest + 1); err != nil {
			return unlessFailed(err)
		}
	}
}

const word = `[0-9A-Za-z_.%+!~-]+`

// otherLine is a line of a part's header beside Content-Disposition. aiohttp used to decode a Content-Encoding.
// Apps for Android call parts multipart/form-data, in which nobody finds more without a boundary.
const otherLine = `(?i:content-length: *[0-9]+|content-transfer-encoding: *(?:binary|8-?bit|7bit)|content-type: *` +
	`(?:multipart/form-data|(?:application|audio|chemical|font|image|message|model|text|video|x-[a-z]+)/[0-9a-z_.*+-]+)(?: *; *(?:charset="?` + charsets + `"?|codecs="?[0-9a-z., +-]+"?))*)`

var (
	// plainHead is the header of a part, with the names of a field and of its file.
	plainHead = regexp.MustCompile(`^(?:` + otherLine + `\r\n)*(?i:content-disposition): *form-data; *name=("[^"%\\[:cntrl:]]+"|[0-9A-Za-z_.+!~-]+)` +
		`((?:; *filename=(?:"((?:[^"[:cntrl:]]*[^"\\[:cntrl:]])?)"|` + word + `))?(?:; *filename\*=(?:utf-8|UTF-8)''` + word + `)?)(?:\r\n` + otherLine + `)*$`)
	// oddName has another name, for readers that look for one in the whole header or decode words, or is that of
	// the part in which Jetty reads the charset of all.
	oddName = regexp.MustCompile(`(?i)name *[*=]|content-disposition|=\?|^"?_charset_"?$`)
	// parsedType is that of parts which Fastify and hapi parse.
	parsedType = regexp.MustCompile(`(?i)content-type:.*(?:json|urlencoded)`)
	// plainText is the same in JSON, but for the quotes around it.
	plainText = regexp.MustCompile(`^(?:"[^"\\\x00-\x1f]*"|[A-Za-z][^"\\\x00-\x20]*|[1-9][0-9]{0,14})$`)
)
