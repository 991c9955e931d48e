package refusal

import (
	"crypto/sha256"
	_ "embed" // for the style sheet and the script
	"encoding/base64"
	"fmt"
	"html"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/supportcode"
)

const (
	// mostTitle and mostText are how many characters a Style may have there.
	mostTitle = 100
	mostText  = 500

	standardAccent = "#3578c6"
)

// A Style brands the built-in page. The zero value is the page without a brand.
type Style struct {
	// Title is the heading, in plain text. If empty, it is ours, in the visitor's
	// language.
	Title string

	// Accent is the colour of the page's edge and of its bar: #rgb, #rrggbb, the
	// same without the #, or a basic colour of CSS by name. If empty, it is a blue.
	Accent string

	// Text says what is the matter, in plain text that may have several lines. If
	// empty, it is ours, in the visitor's language.
	Text string
}

// Validate reports what is wrong with the style.
func (s Style) Validate() error {
	if _, err := colour(s.Accent); err != nil {
		return err
	}
	if err := plainText("title", s.Title, mostTitle, ""); err != nil {
		return err
	}
	return plainText("text", s.Text, mostText, "\n\t")
}

// Compile checks the style and builds the page in each language, around the wait.
func (s Style) Compile() (*Page, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	accent, _ := colour(s.Accent) // which was checked
	sheet := ":root{--accent:" + accent + "}" + styleSheet
	p := &Page{
		policy: "default-src 'none'; script-src " + digest(script) + "; style-src " + digest(sheet) + "; base-uri 'none'; form-action 'none'",
	}
	for i := range languages {
		for kind := range p.notices[i] {
			p.notices[i][kind] = s.notice(&languages[i], kind, "<style>"+sheet+"</style>\n")
		}
	}
	return p, nil
}

// standard is the page of the zero Style.
var standard = sync.OnceValue(func() *Page {
	p, err := Style{}.Compile()
	if err != nil {
		panic(err)
	}
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

// The kinds of notices.
const (
	reloading = iota // the page asks again by itself
	resending        // only the person can ask again
	hopeless         // waiting does not help
	brief            // without style and script
	briefHopeless
	returning // the browser asks again by itself, because a header tells it to
	inviting  // the person asks again, by a link
	kinds
)

// kindOf returns the kind of notice that answers a request. Only requests that are
// safe may be repeated by themselves.
func (f *Refusal) kindOf(r *http.Request, in form) int {
	switch {
	case f.Busy != nil && r.Method == http.MethodGet && f.Busy.Reload:
		return returning
	case f.Busy != nil && r.Method == http.MethodGet:
		return inviting
	case f.Busy != nil:
		return resending
	case in == inBrief && f.Waits:
		return brief
	case in == inBrief:
		return briefHopeless
	case !f.Waits:
		return hopeless
	case r.Method == http.MethodGet || r.Method == http.MethodHead:
		return reloading
	}
	return resending
}

// A notice is a page of ours in one language: texts, and the wait between them.
type notice []segment

type segment struct {
	text string
	then gap
}

// A gap is where a page says the wait, or the support code.
type gap int

const (
	nothing gap = iota
	seconds     // in digits
	words       // as people say it
	code        // a paragraph, if there is a code
)

func (n notice) appendTo(page []byte, l *language, wait time.Duration, support supportcode.Code) []byte {
	for _, s := range n {
		page = append(page, s.text...)
		switch s.then {
		case seconds:
			page = strconv.AppendInt(page, WholeSeconds(wait), 10)
		case words:
			page = l.appendWait(page, wait)
		case code:
			if support != 0 {
				page = append(append(append(page, `<p id="code">`...), l.code...), " <code>"...)
				page = append(support.AppendTo(page), "</code></p>\n"...)
			}
		}
	}
	return page
}

// notice builds a page, around the wait and the support code. The style sheet and the
// script are the same in all, so they are segments of their own, which share their memory.
func (s Style) notice(l *language, kind int, sheet string) notice {
	waits, inBrief := kind != hopeless && kind != briefHopeless, kind == brief || kind == briefHopeless
	title, reason := l.title, l.reason
	if !waits {
		title, reason = l.never, l.neverReason
	}
	if s.Title != "" {
		title = html.EscapeString(s.Title)
	}
	if s.Text != "" {
		reason = html.EscapeString(s.Text)
		if !waits {
			reason += "</p>\n<p>" + l.neverReason
		}
	}
	open := "<!DOCTYPE html>\n<html lang=\"" + l.tag + "\">\n<meta charset=\"utf-8\">\n"
	content := "<h1 dir=\"auto\">" + title + "</h1>\n<p dir=\"auto\">" + reason + "</p>\n"
	title = "<title>" + title + "</title>\n"
	before, after, _ := strings.Cut(l.wait, "%s")
	switch {
	case inBrief && !waits:
		return notice{{open + title + content, code}}
	case inBrief:
		return notice{{open + title + content + "<p>" + before, words}, {after + "</p>\n", code}}
	}
	n := notice{{text: open + "<meta name=\"viewport\" content=\"width=device-width\">\n" + title}, {text: sheet}}
	if !waits {
		return append(n, segment{"<main>\n" + content, code}, segment{text: "</main>\n"})
	}
	status := l.resendNow + `">` + l.resend
	if kind == reloading {
		// Without a script the page reloads, too. With one, the script puts in the
		// promise, lest the page makes it where another policy forbids scripts.
		status = l.loading + `"><noscript>` + l.reload + "</noscript>"
		n = append(n, segment{`<noscript><meta http-equiv="refresh" content="`, seconds}, segment{text: "\"></noscript>\n"})
	}
	link := ""
	switch kind {
	case returning:
		status = l.loading + `">` + l.reload
	case inviting:
		status = `">`
	}
	if kind == returning || kind == inviting {
		link = `<p><a href="">` + l.again + "</a></p>\n"
	}
	return append(n,
		segment{"<main>\n" + content + `<p id="wait">` + before + `<b role="timer" data-units="` + l.units() + `" data-left="`, seconds},
		segment{`">`, words},
		segment{"</b>" + after + `</p>
<progress value="0" aria-hidden="true" hidden></progress>
<p role="status" data-then="` + status + `</p>
` + link, code},
		segment{text: "</main>\n"},
		segment{text: scriptElement},
	)
}

var scriptElement = "<script>" + script + "</script>\n"

// basicColours are those of CSS 2.
var basicColours = strings.Fields("aqua black blue fuchsia gray green lime maroon navy olive orange purple red silver teal white yellow")

// colour returns a colour as CSS has it. Nothing else may get into the style sheet.
func colour(text string) (string, error) {
	if text == "" {
		return standardAccent, nil
	}
	lower := strings.ToLower(text)
	if slices.Contains(basicColours, lower) {
		return lower, nil
	}
	digits := strings.TrimPrefix(lower, "#")
	if (len(digits) != 3 && len(digits) != 6) || strings.Trim(digits, "0123456789abcdef") != "" {
		return "", fmt.Errorf("invalid accent %q: want a colour such as 0a7f5c, \"#0a7f5c\" or one of %s", text, strings.Join(basicColours, ", "))
	}
	return "#" + digits, nil
}

// plainText checks a text that becomes part of a page.
func plainText(option, text string, most int, allowed string) error {
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
