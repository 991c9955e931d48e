package fold

import "strings"

// stripTags does what PHP's strip_tags does: it takes out tags, comments, declarations,
// PHP code and NUL bytes. An unfinished tag takes the rest of the text with it.
func stripTags(text string) string {
	s := tagStripper{text: text, kept: make([]byte, 0, len(text))}
	for ; s.at < len(text); s.at++ {
		switch c := text[s.at]; s.within {
		case outside:
			s.outside(c)
		case tag:
			s.tag(c)
		case code:
			s.code(c)
		case declaration:
			s.declaration(c)
		case comment:
			if c == '>' && s.quote == 0 && s.before("--") {
				s.within = outside
			}
		}
	}
	return string(s.kept)
}

// What a tagStripper is within.
const (
	outside     = iota
	tag         // <a>, and <?xml ?>
	code        // <? ?>
	declaration // <! >
	comment     // <!-- -->
)

type tagStripper struct {
	text   string
	at     int // the byte at hand
	kept   []byte
	within int

	quote    byte // within quotes: which ones
	depth    int  // of < within a tag
	brackets int  // that are open in code
	last     byte // quote or bracket in code
	xml      bool
}

// before reports whether the bytes before the one at hand are these.
func (s *tagStripper) before(text string) bool { return strings.HasSuffix(s.text[:s.at], text) }

// beforeFold is before, for letters of either case.
func (s *tagStripper) beforeFold(lower string) bool {
	return s.at >= len(lower) && lowerASCII(s.text[s.at-len(lower):s.at]) == lower
}

func lowerASCII(text string) string {
	return strings.Map(func(r rune) rune {
		if 'A' <= r && r <= 'Z' {
			r += 'a' - 'A'
		}
		return r
	}, text)
}

// blankNext reports whether a blank follows, so that a < is none of a tag.
func (s *tagStripper) blankNext() bool {
	return s.at+1 < len(s.text) && strings.IndexByte(" \t\n\v\f\r", s.text[s.at+1]) >= 0
}

// closes reports whether a > closes what was opened first.
func (s *tagStripper) closes() bool {
	if s.depth > 0 {
		s.depth--
		return false
	}
	return s.quote == 0
}

func (s *tagStripper) quoted(c byte) {
	switch s.quote {
	case 0:
		s.quote = c
	case c:
		s.quote = 0
	}
}

func (s *tagStripper) outside(c byte) {
	switch {
	case c == 0:
	case c == '<' && s.quote != 0:
	case c == '<' && !s.blankNext():
		s.last, s.within = '<', tag
	case c == '>' && !s.closes():
	default:
		s.kept = append(s.kept, c)
	}
}

func (s *tagStripper) tag(c byte) {
	switch {
	case c == '<' && s.quote == 0 && !s.blankNext():
		s.depth++
	case c == '>' && s.closes():
		s.last = '>'
		if !s.xml || !s.before("-") {
			s.within, s.xml = outside, false
		}
	case c == '"' || c == '\'':
		s.quoted(c)
	case c == '!' && s.before("<"):
		s.last, s.within = c, declaration
	case c == '?' && s.before("<"):
		s.brackets, s.within = 0, code
	}
}

func (s *tagStripper) code(c byte) {
	inText := s.last == '"' || s.last == '\''
	switch {
	case c == '(' && !inText:
		s.last = c
		s.brackets++
	case c == ')' && !inText:
		s.last = c
		s.brackets--
	case c == '>':
		if s.closes() && s.brackets == 0 && s.last != '"' && s.before("?") {
			s.within = outside
		}
	case (c == '"' || c == '\'') && !s.before(`\`):
		switch s.last {
		case c:
			s.last = 0
		case '\\':
		default:
			s.last = c
		}
		s.quoted(c)
	case (c == 'l' || c == 'L') && s.beforeFold("<?xm") && s.at > len("<?xm"): // not at the start
		s.within, s.xml = tag, true
	}
}

func (s *tagStripper) declaration(c byte) {
	switch {
	case c == '>' && s.closes():
		s.within = outside
	case (c == '"' || c == '\'') && !s.before(`\`):
		s.quoted(c)
	case c == '-' && s.before("!-"):
		s.within = comment
	case (c == 'e' || c == 'E') && s.beforeFold("<!doctyp"):
		s.within = tag
	}
}
