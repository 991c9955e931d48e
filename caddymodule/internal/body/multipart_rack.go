package body

import (
	"bytes"
	"regexp"
)

var (
	rack2Boundary      = regexp.MustCompile(`(?i)^multipart/.*?boundary(\s*)="?([^";,]+)"?`)
	rack2OtherBoundary = regexp.MustCompile(`(?i)boundary\s*=`)
	rack3Boundary      = regexp.MustCompile(`(?i)^multipart/.*boundary="?([^";,]+)"?`)
)

// rackParts returns the readings of a form of parts that Rack 2 and 3 do.
// Without a boundary it is URL-encoded.
func (b *Body) rackParts() []reading {
	return append(b.rack2Parts(), b.rack3Parts()...)
}

func (b *Body) rack2Parts() []reading {
	at := rack2Boundary.FindStringSubmatchIndex(b.ContentType)
	if at == nil {
		return b.pairs(rackDialect)
	}
	boundary := b.ContentType[at[4]:at[5]]
	ok := at[2] == at[3] && !rack2OtherBoundary.MatchString(b.ContentType[at[1]:])
	return []reading{{func(data []byte, field func(name, value []byte)) error {
		if !ok {
			return errBroken
		}
		return splitAsRack2(data, boundary, field)
	}, rackDialect}}
}

func (b *Body) rack3Parts() []reading {
	found := rack3Boundary.FindStringSubmatch(b.ContentType)
	if found == nil {
		return b.pairs(rackDialect)
	}
	return []reading{{func(data []byte, field func(name, value []byte)) error {
		if len(found[1]) > rack3LongestBoundary {
			return errBroken
		}
		return splitAsRack3(data, found[1], field)
	}, rackDialect}}
}

// splitAsRack2 reads from boundary to boundary. A field ends where a boundary
// begins, even within a line.
func splitAsRack2(data []byte, boundary string, field func(name, value []byte)) error {
	lines := newRack2Lines(data, "--"+boundary)
	if withoutParts(data, boundary) {
		return nil
	}
	if found, _ := lines.next(); !found {
		return errBroken
	}
	for {
		end := bytes.Index(lines.rest, []byte("\r\n\r\n"))
		if end < 0 {
			return errBroken
		}
		head := lines.rest[:end+2]
		lines.rest = lines.rest[end+4:]
		end, ok := lines.boundaryAt()
		if !ok {
			return errBroken
		}
		field(rack2Name(head), lines.rest[:end])
		lines.rest = lines.rest[min(end+2, len(lines.rest)):]
		if found, last := lines.next(); last || !found {
			return nil
		}
	}
}

// rack2Lines reads up to boundaries.
type rack2Lines struct {
	rest          []byte
	boundary, end []byte
	opens, ends   search // for boundaries that a part follows, and others
}

func newRack2Lines(data []byte, boundary string) rack2Lines {
	opening, end := []byte(boundary+"\r\n"), []byte(boundary+"--")
	return rack2Lines{
		rest: data, boundary: opening[:len(boundary)], end: end,
		opens: search{of: opening, left: len(data) + 1}, ends: search{of: end, left: len(data) + 1},
	}
}

// A search looks for the same bytes again and again, further and further on. It
// looks at each byte once, however far away the next place is.
type search struct {
	of   []byte
	left int // bytes from the last place found to the end, or -1 if there is none
}

func (s *search) in(rest []byte) (at int, found bool) {
	if s.left > len(rest) {
		s.left = -1
		if at := bytes.Index(rest, s.of); at >= 0 {
			s.left = len(rest) - at
		}
	}
	return len(rest) - s.left, s.left >= 0
}

// next reads up to a line that is a boundary, and says whether it is the last.
func (l *rack2Lines) next() (found, last bool) {
	for len(l.rest) > 0 {
		line := l.rest
		if end := bytes.IndexByte(line, '\n'); end >= 0 {
			line = line[:end+1]
		}
		l.rest = l.rest[len(line):]
		line = bytes.TrimRight(bytes.TrimLeft(line, blanks+"\x00"), blanks+"\x00")
		if last := bytes.Equal(line, l.end); last || bytes.Equal(line, l.boundary) {
			return true, last
		}
	}
	return false, false
}

// boundaryAt returns where the next boundary begins, with the end of the line
// before it.
func (l *rack2Lines) boundaryAt() (int, bool) {
	at, found := l.opens.in(l.rest)
	if end, ends := l.ends.in(l.rest); ends && (!found || end < at) {
		at, found = end, true
	}
	if found && bytes.HasSuffix(l.rest[:at], []byte("\r\n")) {
		at -= 2
	}
	return at, found
}

// rack2Name returns the name that the header of a part gives a field.
func rack2Name(head []byte) []byte {
	folded := asciiLower(head)
	if name := rack2Parameter(head, folded, "name="); len(name) > 0 {
		return name
	}
	if at := bytes.Index(folded, []byte("content-id:")); at >= 0 {
		id := bytes.TrimLeft(head[at+len("content-id:"):], blanks)
		if end := bytes.IndexAny(id, "\r\n"); end >= 0 {
			id = id[:end]
		}
		if len(id) > 0 {
			return id
		}
	}
	return rack2Parameter(head, folded, "filename=")
}

// rack2Parameter returns a parameter of the first Content-Disposition that has
// it. If it is given more than once, the last one counts. Rack looks for the
// header anywhere, and for the parameter up to the next colon.
func rack2Parameter(head, folded []byte, name string) []byte {
	const header = "content-disposition:"
	for at := 0; ; {
		next := bytes.Index(folded[at:], []byte(header))
		if next < 0 {
			return nil
		}
		at += next + len(header)
		end := len(folded)
		if colon := bytes.IndexByte(folded[at:], ':'); colon >= 0 {
			end = at + colon
		}
		for last := end; ; {
			found := bytes.LastIndex(folded[at:last], []byte(name))
			if found < 0 {
				break
			}
			last = at + found
			if !bytes.HasSuffix(bytes.TrimRight(folded[at:last], blanks), []byte(";")) {
				continue
			}
			if value, ok := rack2Value(head[last+len(name):]); ok {
				return value
			}
		}
	}
}

// rack2Value reads a token, or a string in quotes.
func rack2Value(text []byte) (value []byte, ok bool) {
	if len(text) == 0 || text[0] != '"' {
		end := bytes.IndexAny(text, "()<>,;:\\\"/[]?="+blanks)
		if end < 0 {
			end = len(text)
		}
		return text[:end], end > 0
	}
	end := 0
	for i := 1; i < len(text); i++ {
		if text[i] != '"' {
			continue
		}
		end = i
		if text[i-1] != '\\' {
			break
		}
	}
	if end == 0 {
		return nil, false
	}
	plain := make([]byte, 0, end)
	for i := 1; i < end; i++ {
		if text[i] == '\\' && i+1 < end && text[i+1] != '\n' {
			i++
		}
		plain = append(plain, text[i])
	}
	return plain, true
}

// asciiLower keeps the length of every byte, whatever it stands for.
func asciiLower(text []byte) []byte {
	lower := make([]byte, len(text))
	for i, c := range text {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		lower[i] = c
	}
	return lower
}

// Limits of Rack 3, in bytes and parameters.
const (
	rack3LongestBoundary    = 70
	rack3LongestDisposition = 1536
	rack3MostParameters     = 16
)

// splitAsRack3 reads from boundary to boundary, which begin lines.
func splitAsRack3(data []byte, boundary string, field func(name, value []byte)) error {
	if withoutParts(data, boundary) {
		return nil
	}
	scan := newRack3Scan(data, boundary)
	for last := true; last; { // a last boundary before the first part is passed over
		var found bool
		if last, found = scan.next(); !found {
			return errBroken
		}
	}
	for {
		end := bytes.Index(scan.rest, []byte("\r\n\r\n"))
		if end < 0 {
			return errBroken
		}
		head := scan.rest[:end+2]
		scan.rest = scan.rest[end+4:]
		length, _, _, found := scan.find()
		if !found {
			return errBroken
		}
		field(rack3Name(head), scan.rest[:length])
		scan.rest = scan.rest[min(length+2, len(scan.rest)):]
		if last, found := scan.next(); last || !found {
			return nil
		}
	}
}

// A rack3Scan finds the boundaries that begin lines, or what is left.
type rack3Scan struct {
	rest        []byte
	opens, ends search
}

func newRack3Scan(data []byte, boundary string) rack3Scan {
	return rack3Scan{
		rest:  data,
		opens: search{of: []byte("\r\n--" + boundary + "\r\n"), left: len(data) + 1},
		ends:  search{of: []byte("\r\n--" + boundary + "--"), left: len(data) + 1},
	}
}

// find returns where the next boundary begins, with the end of the line before
// it, where it ends, and whether it is the last one of a form.
func (s *rack3Scan) find() (at, end int, last, found bool) {
	if opening := s.opens.of[2:]; bytes.HasPrefix(s.rest, opening) {
		return 0, len(opening), false, true
	}
	if closing := s.ends.of[2:]; bytes.HasPrefix(s.rest, closing) {
		return 0, len(closing), true, true
	}
	at, found = s.opens.in(s.rest)
	if ends, is := s.ends.in(s.rest); is && (!found || ends < at) {
		return ends, ends + len(s.ends.of), true, true
	}
	return at, at + len(s.opens.of), false, found
}

// next passes over a boundary.
func (s *rack3Scan) next() (last, found bool) {
	_, end, last, found := s.find()
	if found {
		s.rest = s.rest[end:]
	}
	return last, found
}

var (
	rack3Disposition = regexp.MustCompile(`(?im)^content-disposition:(?:[ \t]+(?:\r\n[ \t]+)?)?((?:[^\r\n]|\r\n[ \t])*)`)
	rack3ContentID   = regexp.MustCompile(`(?im)^content-id:(?:[ \t]+(?:\r\n[ \t]+)?)?((?:[^\r\n]|\r\n[ \t])*)`)
)

// rack3Name returns the name that the header of a part gives a field.
func rack3Name(head []byte) []byte {
	found := rack3Disposition.FindSubmatch(head)
	if found == nil || len(found[1]) > rack3LongestDisposition {
		if id := rack3ContentID.FindSubmatch(head); id != nil {
			return id[1]
		}
		return nil
	}
	_, rest, _ := bytes.Cut(found[1], []byte(";"))
	var name, filename []byte
	for range rack3MostParameters {
		parameter, value, more := bytes.Cut(rest, []byte("="))
		if !more {
			break
		}
		if len(value) > 0 && value[0] == '"' {
			value, rest = rack3Quoted(value[1:])
		} else if end := bytes.IndexByte(value, ';'); end >= 0 {
			value, rest = value[:end], value[end:]
		} else {
			value, rest = bytes.Trim(value, blanks+"\x00"), nil
		}
		switch string(bytes.TrimLeft(parameter, blanks+"\x00")) {
		case "name":
			name = value
		case "filename":
			filename = value[bytes.LastIndexAny(value, `/\`)+1:]
		}
		if _, after, ok := bytes.Cut(rest, []byte(";")); ok {
			rest = after
		}
	}
	if len(name) > 0 {
		return name
	}
	return filename
}

// rack3Quoted reads up to a quote, and forgets what no quote and no backslash
// follows.
func rack3Quoted(text []byte) (value, rest []byte) {
	for {
		at := bytes.IndexAny(text, `"\`)
		if at < 0 {
			return value, text
		}
		value = append(value, text[:at]...)
		if text[at] == '"' || at+1 == len(text) {
			return value, text[at+1:]
		}
		value = append(value, text[at+1])
		text = text[at+2:]
	}
}
