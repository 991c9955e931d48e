package refusal

import (
	"fmt"
	"html"
	"regexp"

	"github.com/caddyserver/caddy/v2"
)

// MostPage is how many bytes a page may have.
const MostPage = 1 << 20

// A Page is what people see of a refusal: the built-in page, which a [Style]
// compiles, or one of the user's own, in HTML, with placeholders that are filled in
// for each refusal. It is immutable and safe for concurrent use.
type Page struct {
	pieces []piece // of the user's own

	notices [][kinds][]piece // of the built-in page, by languages
	text    string           // the Style's, as HTML
	sheet   string           // its style sheet, as an element
	policy  string           // its Content-Security-Policy; "" for the user's own
}

// A piece of a page is a literal text and the placeholder behind it, if there is one.
type piece struct{ text, placeholder string }

// placeholder is narrower than what Caddy takes for a placeholder, so that style
// sheets and scripts stay what they are.
var placeholder = regexp.MustCompile(`\{[a-z]+\.[^{}\s:;"']+\}`)

// Compile finds the placeholders of a page of the user's own. An empty page is a page.
func Compile(text string) (*Page, error) {
	if len(text) > MostPage {
		return nil, fmt.Errorf("the page has %d bytes: want at most %d", len(text), MostPage)
	}
	return &Page{pieces: piecesOf(text, placeholder)}, nil
}

// piecesOf cuts a text behind its placeholders, which are in braces.
func piecesOf(text string, placeholder *regexp.Regexp) (pieces []piece) {
	end := 0
	for _, at := range placeholder.FindAllStringIndex(text, -1) {
		pieces = append(pieces, piece{text[end:at[0]], text[at[0]+1 : at[1]-1]})
		end = at[1]
	}
	return append(pieces, piece{text: text[end:]})
}

// appendTo fills the placeholders in, in one pass: values are escaped, and stay
// text if they look like placeholders. Placeholders that are not known stay as
// they are, since a script may contain what looks like one.
func (p *Page) appendTo(page []byte, values *caddy.Replacer) []byte {
	for _, piece := range p.pieces {
		page = append(page, piece.text...)
		if value, known := lookUp(values, piece.placeholder); known {
			page = append(page, html.EscapeString(value)...)
		} else if piece.placeholder != "" {
			page = append(append(append(page, '{'), piece.placeholder...), '}')
		}
	}
	return page
}

func lookUp(values *caddy.Replacer, name string) (string, bool) {
	if values == nil || name == "" {
		return "", false
	}
	return values.GetString(name)
}
