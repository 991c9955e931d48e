package body

import (
	"bytes"
	"errors"
	"regexp"
)

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
