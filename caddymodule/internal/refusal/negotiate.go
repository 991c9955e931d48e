package refusal

import (
	_ "embed" // for the languages
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"golang.org/x/text/feature/plural"
	textlanguage "golang.org/x/text/language"
)

// mostAccept is how many bytes of the Accept and Accept-Language headers are parsed, which
// bounds the work for hostile clients. Browsers send about 150.
const mostAccept = 4 << 10

// A form is what the answer to a client is written in.
type form int

const (
	inHTML  form = iota // what browsers ask for when somebody opens a page
	inBrief             // HTML without style and script: for images and scripts, and for curl
	inJSON
	inGRPC
)

// IsPage reports whether a request is for a page that somebody opens in a browser.
func IsPage(r *http.Request) bool { return formFor(r.Header.Get("Accept"), "") == inHTML }

// formFor returns the form that a client prefers. Clients that name neither HTML nor JSON get what
// they sent if that is JSON, as the scripts of pages do with fetch, and otherwise HTML.
func formFor(accept, sent string) form {
	sent, _, _ = strings.Cut(sent, ";")
	if in := form(firstOf(accept, formOf, int(inBrief))); in != inBrief || formOf(strings.TrimSpace(sent)) != int(inJSON) {
		return in
	}
	return inJSON
}

// formOf returns the form of a media type, or -1. A kind of JSON is JSON, such as
// application/problem+json.
func formOf(kind string) int {
	const suffix = "+json"
	switch {
	case strings.EqualFold(kind, "text/html"), strings.EqualFold(kind, "application/xhtml+xml"):
		return int(inHTML)
	case strings.EqualFold(kind, "application/json"), len(kind) > len(suffix) && strings.EqualFold(kind[len(kind)-len(suffix):], suffix):
		return int(inJSON)
	}
	return -1
}

// preferred returns the index of the language that a client wants most, and English if it
// wants none.
func preferred(accept string) int { return firstOf(accept, spoken, 0) }

// spoken returns the index of the language of a tag such as de or pt-BR, or -1.
func spoken(tag string) int {
	tag, _, _ = strings.Cut(tag, "-")
	for i := range languages {
		if strings.EqualFold(tag, languages[i].Tag) {
			return i
		}
	}
	return -1
}

// firstOf returns the first of what a header names that find knows, or otherwise if it knows
// none. Clients name first what they want most, so their weights are not read.
func firstOf(header string, find func(name string) int, otherwise int) int {
	for element := range strings.SplitSeq(header[:min(len(header), mostAccept)], ",") {
		name, _, _ := strings.Cut(element, ";")
		if i := find(strings.TrimSpace(name)); i >= 0 {
			return i
		}
	}
	return otherwise
}

// isCall reports whether a request is a gRPC call, of a program or of a page (grpc-web).
func isCall(r *http.Request) bool {
	more, grpc := strings.CutPrefix(strings.ToLower(r.Header.Get("Content-Type")), "application/grpc")
	return grpc && (more == "" || strings.Contains("+-; ", more[:1]))
}

// endCall answers a gRPC call. Clients of gRPC take any status of HTTP but 200 for an outage, and
// some of them repeat the call at once. They keep the pushback, and do not repeat a call whose
// pushback is negative (gRFC A6).
func (f *Refusal) endCall(w http.ResponseWriter, r *http.Request) {
	const resourceExhausted = "8"
	message, pushback := f.message(&languages[0]), "-1"
	if f.Code != 0 {
		message += " (" + f.Code.String() + ")"
	}
	if f.Waits {
		pushback = strconv.FormatInt(WholeSeconds(f.RetryAfter)*1000, 10)
	}
	header := w.Header()
	header.Set("Content-Type", r.Header.Get("Content-Type"))
	header.Set("Grpc-Status", resourceExhausted)
	header.Set("Grpc-Message", url.PathEscape(message))
	header.Set("Grpc-Retry-Pushback-Ms", pushback)
	header.Set("Content-Length", "0")
	w.WriteHeader(http.StatusOK)
}

// A language is one in which people are told of a refusal. No sentence in it has
// a character that HTML gives a meaning.
type language struct {
	Tag string // BCP 47

	Title string
	Never string // the title where waiting does not help
	reasons

	Wait      string // with one %s for the time
	Reload    string // the page will do that when the wait is over
	Loading   string // it does
	Resend    string // what to do about a request that the page cannot repeat
	ResendNow string // it is time to
	Again     string // the text of the link that loads the page again

	Code string // what stands before a support code

	Forms [3][]string // of seconds, minutes and hours: what follows a number: one, a few, and others

	tag textlanguage.Tag
}

// reasons are why requests are refused.
type reasons struct {
	Reason      string // there are too many
	LogIns      string // that of a zone that refunds logins
	Banned      string // that of a ban
	NeverReason string // that of what waiting cannot fix
}

//go:embed languages.json
var languagesJSON []byte

// languages are the ten most common ones of websites (W3Techs), the default first.
var languages = func() (all []language) {
	if err := json.Unmarshal(languagesJSON, &all); err != nil {
		panic(err)
	}
	for i := range all {
		all[i].tag = textlanguage.MustParse(all[i].Tag)
	}
	return all
}()

// Units returns the forms as the page's script reads them.
func (l *language) Units() string {
	return strings.Join(l.Forms[0], ",") + "|" + strings.Join(l.Forms[1], ",") + "|" + strings.Join(l.Forms[2], ",")
}

// appendWait appends a time as people say it, rounded up.
func (l *language) appendWait(text []byte, d time.Duration) []byte {
	n, unit := readable(d)
	text = strconv.AppendInt(text, n, 10)
	forms := l.Forms[unit]
	form := len(forms) - 1
	switch plural.Cardinal.MatchPlural(l.tag, int(n), 0, 0, 0, 0) {
	case plural.One:
		form = 0
	case plural.Few:
		form = min(1, form)
	}
	return append(text, forms[form]...)
}
