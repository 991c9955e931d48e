package body

import (
	"bytes"
	"errors"
	"strings"
)

var errBroken = errors.New("the form is broken")

// phpBuffer is how much PHP holds of a form of parts. A line that is longer is
// several lines to it, and a boundary must fit.
const phpBuffer = 5120

// phpParts returns the reading of a form of parts that PHP does.
func (b *Body) phpParts() reading {
	boundary, ok := phpBoundary(b.ContentType)
	return reading{func(data []byte, field func(name, value []byte)) error {
		if !ok {
			return errBroken
		}
		return splitAsPHP(data, boundary, field)
	}, phpDialect}
}

func phpBoundary(contentType string) (string, bool) {
	at := strings.Index(contentType, "boundary")
	if at < 0 {
		at = bytes.Index(asciiLower([]byte(contentType)), []byte("boundary"))
	}
	if at < 0 {
		return "", false
	}
	_, boundary, ok := strings.Cut(contentType[at:], "=")
	if quoted, is := strings.CutPrefix(boundary, `"`); is {
		boundary, _, ok = strings.Cut(quoted, `"`)
	} else if end := strings.IndexAny(boundary, ",;"); end >= 0 {
		boundary = boundary[:end]
	}
	return boundary, ok && len(boundary) <= phpBuffer-len("--")
}

// splitAsPHP reads line by line. A field ends before a line that begins like a
// boundary, and the next begins after a line that is one.
func splitAsPHP(data []byte, boundary string, field func(name, value []byte)) error {
	lines := phpLines{rest: data, longest: max(phpBuffer, len(boundary)+6)}
	opening, closing := []byte("--"+boundary), []byte("\n--"+boundary)
	for found := withoutParts(data, boundary); ; {
		line, ok := lines.next()
		if !ok && !found {
			return errBroken
		}
		if !ok {
			return nil
		}
		if !bytes.Equal(line, opening) {
			continue
		}
		found = true
		disposition, given := lines.disposition()
		if !given {
			continue
		}
		name, named, isFile := phpName(disposition)
		if !named && !isFile {
			return nil // PHP gives up, and keeps what it has read
		}
		value, whole := phpValue(lines.rest, closing)
		if named {
			field(name, bytes.TrimSuffix(value, []byte("\r")))
		}
		if !whole {
			return errBroken
		}
		lines.rest = lines.rest[len(value):]
	}
}

// withoutParts reports whether a form is whole and has no fields.
func withoutParts(data []byte, boundary string) bool {
	return string(bytes.Trim(data, blanks)) == "--"+boundary+"--"
}

// phpValue returns what comes before a boundary, with the carriage return. Where
// the data breaks off, the beginning of a boundary is one.
func phpValue(data, boundary []byte) (value []byte, whole bool) {
	if end := bytes.Index(data, boundary); end >= 0 {
		return data[:end], true
	}
	for end := max(0, len(data)-len(boundary)+1); end < len(data); end++ {
		if bytes.HasPrefix(boundary, data[end:]) {
			return data[:end], false
		}
	}
	return data, false
}

// phpLines reads lines as PHP does: the last one must end, too, and a NUL byte
// hides the rest of a line.
type phpLines struct {
	rest    []byte
	longest int
}

func (l *phpLines) next() (line []byte, ok bool) {
	window := l.rest[:min(len(l.rest), l.longest)]
	switch end := bytes.IndexByte(window, '\n'); {
	case end >= 0:
		line, l.rest = bytes.TrimSuffix(window[:end], []byte("\r")), l.rest[end+1:]
	case len(window) == l.longest:
		line, l.rest = window, l.rest[l.longest:]
	default:
		return nil, false
	}
	if end := bytes.IndexByte(line, 0); end >= 0 {
		line = line[:end]
	}
	return line, true
}

// disposition reads the header of a part, and returns its Content-Disposition.
// A line that begins with a blank or has no colon goes on with the one before.
func (l *phpLines) disposition() (value []byte, found bool) {
	header, wanted := false, false // some header is being read, and it is that
	for {
		line, ok := l.next()
		if !ok || len(line) == 0 {
			return value, found
		}
		name, rest, colon := bytes.Cut(line, []byte(":"))
		switch {
		case colon && strings.IndexByte(blanks, line[0]) < 0:
			header, wanted = true, !found && strings.EqualFold(string(name), "Content-Disposition")
			if wanted {
				found, value = true, append(value, bytes.TrimLeft(rest, blanks)...)
			}
		case header && wanted:
			value = append(value, line...)
		}
	}
}

// phpName returns the name that a Content-Disposition gives a field, and
// whether it is a file.
func phpName(disposition []byte) (name []byte, named, isFile bool) {
	rest := bytes.TrimLeft(disposition, blanks)
	for len(rest) > 0 {
		var parameter []byte
		parameter, rest = phpWord(rest, ';')
		rest = bytes.TrimLeft(rest, blanks)
		if bytes.IndexByte(parameter, '=') < 0 {
			continue
		}
		key, value := phpWord(parameter, '=')
		switch {
		case strings.EqualFold(string(key), "name"):
			name, named = phpUnquoted(value), true
		case strings.EqualFold(string(key), "filename"):
			isFile = true
		}
	}
	return name, named, isFile
}

// phpWord cuts text at a byte that does not stand in quotes, and after all of
// that byte that follow.
func phpWord(text []byte, stop byte) (word, rest []byte) {
	for i := 0; i < len(text); i++ {
		switch c := text[i]; c {
		case stop:
			return text[:i], bytes.TrimLeft(text[i:], string(rune(stop)))
		case '"', '\'':
			for i++; i < len(text) && text[i] != c; i++ {
				if text[i] == '\\' && i+1 < len(text) && text[i+1] == c {
					i++
				}
			}
		}
	}
	return text, nil
}

func phpUnquoted(text []byte) []byte {
	text = bytes.TrimLeft(text, blanks)
	var quote byte
	if len(text) > 0 && (text[0] == '"' || text[0] == '\'') {
		quote, text = text[0], text[1:]
	} else if end := bytes.IndexAny(text, blanks); end >= 0 {
		text = text[:end]
	}
	plain := make([]byte, 0, len(text))
	for i := 0; i < len(text) && (quote == 0 || text[i] != quote); i++ {
		if text[i] == '\\' && i+1 < len(text) && (text[i+1] == '\\' || quote != 0 && text[i+1] == quote) {
			i++
		}
		plain = append(plain, text[i])
	}
	return plain
}
