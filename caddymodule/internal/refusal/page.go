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

	notices [len(languages)][kinds]notice // of the built-in page
	policy  string                        // its Content-Security-Policy; "" for the user's own
}

// A piece of a page is a literal text or a placeholder.
type piece struct{ text, placeholder string }

// placeholder is narrower than what Caddy takes for a placeholder, so that style
// sheets and scripts stay what they are.
var placeholder = regexp.MustCompile(`\{[a-z]+\.[^{}\s:;"']+\}`)

// Compile finds the placeholders of a page of the user's own. An empty page is a page.
func Compile(text string) (*Page, error) {
	if len(text) > MostPage {
		return nil, fmt.Errorf("the page has %d bytes: want at most %d", len(text), MostPage)
	}
	p, end := new(Page), 0
	for _, at := range placeholder.FindAllStringIndex(text, -1) {
		if at[0] > end {
			p.pieces = append(p.pieces, piece{text: text[end:at[0]]})
		}
		p.pieces = append(p.pieces, piece{placeholder: text[at[0]+1 : at[1]-1]})
		end = at[1]
	}
	if end < len(text) {
		p.pieces = append(p.pieces, piece{text: text[end:]})
	}
	return p, nil
}

// appendTo fills the placeholders in, in one pass: values are escaped, and stay
// text if they look like placeholders. Placeholders that are not known stay as
// they are, since a script may contain what looks like one.
func (p *Page) appendTo(page []byte, values *caddy.Replacer) []byte {
	for _, piece := range p.pieces {
		if piece.placeholder == "" {
			page = append(page, piece.text...)
		} else if value, known := lookUp(values, piece.placeholder); known {
			page = append(page, html.EscapeString(value)...)
		} else {
			page = append(page, '{')
			page = append(page, piece.placeholder...)
			page = append(page, '}')
		}
	}
	return page
}

func lookUp(values *caddy.Replacer, name string) (string, bool) {
	if values == nil {
		return "", false
	}
	return values.GetString(name)
}
