package refusal

import (
	_ "embed" // for the languages
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"golang.org/x/text/feature/plural"
	textlanguage "golang.org/x/text/language"
)

// A language is one in which people are told of a refusal. No sentence in it has
// a character that HTML gives a meaning.
type language struct {
	Tag string // BCP 47

	Title, Reason string
	LogIns        string // the reason of a zone that refunds log-ins
	Wait          string // with one %s for the time
	Reload        string // the page will do that when the wait is over
	Loading       string // it does
	Resend        string // what to do about a request that the page cannot repeat
	ResendNow     string // it is time to
	Again         string // the text of the link that loads the page again

	// Of a refusal that waiting cannot fix.
	Never, NeverReason string

	Code string // what stands before a support code

	Forms [3][]string // of seconds, minutes and hours: what follows a number: one, a few, and others

	tag textlanguage.Tag
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
	units := make([]string, len(l.Forms))
	for i, forms := range l.Forms {
		units[i] = strings.Join(forms, ",")
	}
	return strings.Join(units, "|")
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
