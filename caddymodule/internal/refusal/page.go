package refusal

import (
	"cmp"
	"crypto/sha256"
	_ "embed" // for the style sheet and the script
	"encoding/base64"
	"fmt"
	"html"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"text/template"
	"unicode"
	"unicode/utf8"

	"github.com/caddyserver/caddy/v2"
)

// MostPage is how many bytes a page may have.
const MostPage = 1 << 20

// A Page is what people see of a refusal: the built-in page, which a [Style]
// compiles, or one of the user's own, in HTML, with placeholders that are filled in
// for each refusal. It is immutable and safe for concurrent use.
type Page struct {
	pieces []piece // of the user's own

	notices []map[look][]piece // of the built-in page, by languages
	text    string             // the Style's, as HTML
	sheet   string             // its style sheet, as an element
	policy  string             // its Content-Security-Policy; "" for the user's own
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
		if piece.placeholder == "" {
			continue
		}
		if value, known := values.GetString(piece.placeholder); known {
			page = append(page, html.EscapeString(value)...)
		} else {
			page = append(append(append(page, '{'), piece.placeholder...), '}')
		}
	}
	return page
}

const (
	// mostTitle and mostText are how many characters a Style may have there.
	mostTitle = 100
	mostText  = 500

	standardAccent = "#3578c6"
)

// A Style brands the built-in page. Its texts are plain text in one language. All others
// on the page are in the visitor's language. The zero value is the page without a brand.
type Style struct {
	// The heading, such as the name of the site: at most 100 characters. Default:
	// "One moment, please".
	Title string `json:"title,omitempty"`

	// The colour of the page's edge and of its bar: `#0a7f5c`, `0a7f5c` or `#0a7`. Default: a blue.
	Accent string `json:"accent,omitempty"`

	// The explanation, in at most 500 characters. How long to wait, and what to do
	// then, follows it. Zones with refund say "Too many failed logins." instead, and bans
	// that the network is refused.
	// Default: "This site is receiving too many requests right now."
	Text string `json:"text,omitempty"`
}

// Compile checks the style and builds the page in each language, around the wait.
func (s Style) Compile() (*Page, error) {
	accent, err := colour(s.Accent)
	if err = cmp.Or(err, checkText("title", s.Title, mostTitle, ""), checkText("text", s.Text, mostText, "\n\t")); err != nil {
		return nil, err
	}
	sheet := ":root{--accent:" + accent + "}" + styleSheet
	p := &Page{
		notices: make([]map[look][]piece, len(languages)), text: html.EscapeString(s.Text), sheet: "<style>" + sheet + "</style>\n",
		policy: "default-src 'none'; script-src " + digest(script) + "; style-src " + digest(sheet) + "; base-uri 'none'; form-action 'none'",
	}
	for i := range languages {
		p.notices[i] = make(map[look][]piece)
		for _, look := range looks {
			p.notices[i][look] = s.notice(&languages[i], look)
		}
	}
	return p, nil
}

// standard is the page of the zero Style.
var standard = sync.OnceValue(func() *Page {
	p, _ := Style{}.Compile() // in which nothing can be wrong
	return p
})

var (
	//go:embed page.css
	styleSheet string

	// The script counts down, by the wall clock, so that a laptop's sleep counts. It
	// reloads the page only while somebody is looking at it, and only online: tabs
	// in the background do not all come back in the same second.
	//
	//go:embed page.js
	script string
)

// digest returns what allows exactly one inline script or style sheet.
func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// A look is what differs between the built-in pages in one language.
type look struct {
	Waits   bool // waiting helps
	Brief   bool // without style and script
	Reloads bool // the page asks again by itself
	Returns bool // the browser does, because a header tells it to
	Invites bool // the person does, by a link
}

// looks are all that [Refusal.lookFor] returns.
var looks = []look{{}, {Brief: true}, {Waits: true}, {Waits: true, Brief: true}, {Waits: true, Reloads: true}, {Waits: true, Returns: true}, {Waits: true, Invites: true}}

// lookFor returns the look of the answer to a request. Only requests that are safe may be
// repeated by themselves.
func (f *Refusal) lookFor(method string, in form) look {
	whole, get := f.Waits && in != inBrief, method == http.MethodGet
	return look{
		Waits: f.Waits, Brief: in == inBrief,
		Reloads: whole && !f.Busy && (get || method == http.MethodHead),
		Returns: whole && get && f.Reloads,
		Invites: whole && get && f.Busy && !f.Reloads,
	}
}

// A notice is what the layout of the built-in page asks.
type notice struct {
	*language
	look
	Title, Reason string
	Before, After string // of the wait
}

//go:embed page.html
var layoutText string

var layout = template.Must(template.New("page").Parse(layoutText))

// gap is what differs from refusal to refusal, and what is the same on all pages, so that
// they share its memory.
var gap = regexp.MustCompile(`\{(reason|seconds|words|code|sheet|script)\}`)

// notice builds a page in one language.
func (s Style) notice(l *language, look look) []piece {
	n := notice{language: l, look: look, Title: l.Title, Reason: "{reason}"}
	if !n.Waits {
		n.Title, n.Reason = l.Never, l.NeverReason
		if s.Text != "" {
			n.Reason = html.EscapeString(s.Text) + "</p>\n<p>" + l.NeverReason
		}
	}
	if s.Title != "" {
		n.Title = html.EscapeString(s.Title)
	}
	n.Before, n.After, _ = strings.Cut(l.Wait, "%s")
	var page strings.Builder
	if err := layout.Execute(&page, n); err != nil {
		panic(err)
	}
	return piecesOf(page.String(), gap)
}

// appendNotice fills in what differs from refusal to refusal.
func (p *Page) appendNotice(page []byte, notice []piece, l *language, f *Refusal) []byte {
	for _, piece := range notice {
		page = append(page, piece.text...)
		switch piece.placeholder {
		case "reason":
			page = append(page, f.reason(l, p.text)...)
		case "seconds": // in digits
			page = strconv.AppendInt(page, WholeSeconds(f.TimeToFit), 10)
		case "words": // as people say it
			page = l.appendWait(page, f.TimeToFit)
		case "sheet":
			page = append(page, p.sheet...)
		case "script":
			page = append(page, scriptElement...)
		case "code":
			if f.Code != 0 {
				page = append(append(append(page, `<p id="code">`...), l.Code...), " <code>"...)
				page = append(f.Code.AppendTo(page), "</code></p>\n"...)
			}
		}
	}
	return page
}

var scriptElement = "<script>" + script + "</script>\n"

// colour returns a colour as CSS has it. Nothing else may get into the style sheet.
func colour(text string) (string, error) {
	digits := strings.TrimPrefix(strings.ToLower(cmp.Or(text, standardAccent)), "#")
	if (len(digits) != 3 && len(digits) != 6) || strings.Trim(digits, "0123456789abcdef") != "" {
		return "", fmt.Errorf("invalid accent %q: want a colour such as 0a7f5c or \"#0a7f5c\"", text)
	}
	return "#" + digits, nil
}

// checkText checks a plain text for people, of at most so many characters.
func checkText(option, text string, most int, allowed string) error {
	switch n := utf8.RuneCountInString(text); {
	case !utf8.ValidString(text):
		return fmt.Errorf("the %s is not valid UTF-8", option)
	case n > most:
		return fmt.Errorf("the %s has %d characters: want at most %d", option, n, most)
	case text != "" && strings.TrimSpace(text) == "":
		return fmt.Errorf("the %s is blank", option)
	}
	for _, c := range text {
		if unicode.IsControl(c) && !strings.ContainsRune(allowed, c) {
			return fmt.Errorf("the %s has the control character %q", option, c)
		}
	}
	return nil
}
