package text

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// mostMarks is how many combining marks may follow a character: stacked higher, they
// cover other lines.
const mostMarks = 2

// Printable returns text that a terminal or a page can show: control bytes, marks of
// text direction, invisible characters and what is no UTF-8 are escaped. What is longer
// than most characters is cut.
func Printable(text string, most int) string {
	if plain(text, most) {
		return text
	}
	var b strings.Builder
	marks, n := 0, 0
	for i := 0; i < len(text); {
		if n++; n > most {
			b.WriteString("…")
			break
		}
		r, size := utf8.DecodeRuneInString(text[i:])
		if unicode.IsMark(r) {
			marks++
		} else {
			marks = 0
		}
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, text[i])
		case r == '\\':
			b.WriteString(`\\`)
		case !strconv.IsPrint(r) || marks > mostMarks:
			escape := strconv.QuoteRuneToASCII(r)
			b.WriteString(escape[1 : len(escape)-1])
		default:
			b.WriteRune(r)
		}
		i += size
	}
	return b.String()
}

// plain reports whether text may be shown as it is.
func plain(text string, most int) bool {
	if len(text) > most {
		return false
	}
	for i := range len(text) {
		if c := text[i]; c < ' ' || c > '~' || c == '\\' {
			return false
		}
	}
	return true
}
