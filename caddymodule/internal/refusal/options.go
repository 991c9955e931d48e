package refusal

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"time"

	"github.com/caddyserver/caddy/v2"
	"golang.org/x/time/rate"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/option"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// Options are what refused clients get, and what is logged of it.
type Options struct {
	// The status, from 400 to 599. Default: 429.
	Status int `json:"status,omitempty"`

	// The text that people see when this zone refuses them, such as `Too
	// many failed logins.` The built-in page shows it, instead of the text of
	// page_style, and JSON answers carry it with the wait in the member `message`,
	// which WordPress's editor shows. Pages of your own have it as
	// `{http.throttle.message}`. Default: that the site receives too many requests, or, with
	// refund, that too many logins have failed, in the visitor's language.
	Message string `json:"message,omitempty"`

	// The HTML of refusals. Placeholders in it are filled in and their values escaped. In a
	// Caddyfile, `page` reads a file into this field. Default: a short built-in page in
	// the visitor's language, which counts down, and reloads by itself after a GET.
	PageHTML *string `json:"page_html,omitempty"`

	// Brand the built-in page. In a Caddyfile, `page` with a block. Default: the
	// built-in page without a brand.
	PageStyle *Style `json:"page_style,omitempty"`

	// Leave the answer to the site's error routes. Default: throttle writes it. Error
	// routes cost several times as much, and may run the very upstream that is to be
	// protected.
	Error bool `json:"error,omitempty"`

	// What Retry-After says: `empty` is the time until the bucket is empty, `fit`
	// the time until the request would fit. A duration is said as it is, unless
	// the time to fit is longer. Default: `empty`.
	RetryAfter string `json:"retry_after,omitempty"`

	// `off` leaves out the support code that visitors can tell you, and by which
	// `caddy throttle why <code>` says what was refused. The built-in page and JSON
	// answers show it; pages of your own and error routes have it as
	// `{http.throttle.support_code}`. Codes are random and tell visitors nothing. Caddy
	// remembers the last 10,000 refusals. Default: refusals have a code.
	Code string `json:"code,omitempty"`

	// How many refusals by this zone are in Caddy's access log: `all`, `off`, or at
	// most a rate such as `10/s`. Default: `all`. The next line of the zone that is
	// written says how many were not. Metrics and Caddy's own log count them all.
	Log string `json:"log,omitempty"`

	Page     *Page         `json:"-"` // nil means the built-in page
	LogLimit *rate.Limiter `json:"-"` // of refusals in the access log; nil if there is none

	RetryFloor time.Duration `json:"-"` // the least that Retry-After says
}

// Words of refusal.
const (
	retryEmpty = "empty"
	retryFit   = "fit"
	logAll     = "all"
)

// SaysEmpty reports whether Retry-After says the time to empty.
func (o *Options) SaysEmpty() bool { return o.RetryAfter == retryEmpty }

// FillIn fills in defaults, of which status is one.
func (o *Options) FillIn(status int) {
	o.Status, o.RetryAfter, o.Log = cmp.Or(o.Status, status), cmp.Or(o.RetryAfter, retryEmpty), cmp.Or(o.Log, logAll)
}

// Compile checks and compiles the options, of which defaults are filled in.
func (o *Options) Compile() error {
	var wrongLog, wrongPage, wrongFloor error
	o.LogLimit, wrongLog = ParseLog(o.Log)
	o.Page, wrongPage = o.compilePage()
	o.RetryFloor, wrongFloor = parseRetryAfter(o.RetryAfter)
	own := o.PageHTML != nil || o.PageStyle != nil
	return cmp.Or(
		option.About("refusal log", 0, wrongLog),
		option.Within("refusal status", o.Status, 400, 599),
		option.Among("refusal code", o.Code, option.Off),
		option.Refuse("refusal status", o.Status == 444, "status 444 is nginx's word for a closed connection, and Caddy would send it: want @out throttle_blocked and abort @out in the site, or another status"),
		option.Refuse("refusal page", o.PageHTML != nil && o.PageStyle != nil, "page_style and page_html exclude each other: a page of your own has its own style"),
		option.Refuse("refusal page", o.PageStyle != nil && *o.PageStyle == Style{}, "page has no value: want a file, or a block of title, accent and text"),
		option.Refuse("refusal page", own && o.Error, "page and error exclude each other: error routes write their own page"),
		option.About("refusal message", 0, checkMessage(o.Message)),
		option.About("refusal page", 0, wrongPage),
		option.About("refusal retry_after", 0, wrongFloor),
	)
}

// parseRetryAfter returns the least that Retry-After says, which is zero for words.
func parseRetryAfter(word string) (floor time.Duration, err error) {
	if word == retryEmpty || word == retryFit {
		return 0, nil
	}
	if floor, err = caddy.ParseDuration(word); err != nil || floor <= 0 || floor > option.Longest {
		err = fmt.Errorf("invalid retry_after %q: want empty, fit, or a duration of at most a day, such as 30s", word)
	}
	return floor, err
}

// longestMessage is how many letters a message may have, which are read on phones.
const longestMessage = 300

// markup is what WordPress's editor takes for HTML. It drops messages with that.
var markup = regexp.MustCompile(`</?[^>]*>`)

// checkMessage refuses messages that people would not see, or not as they were meant.
func checkMessage(text string) error {
	if markup.MatchString(text) {
		return fmt.Errorf("invalid message %q: want plain text without HTML; page <file> is for that", text)
	}
	return checkText("message", text, longestMessage, "")
}

// compilePage returns the page of refusals, or nil for the built-in one.
func (o *Options) compilePage() (*Page, error) {
	switch {
	case o.PageHTML != nil:
		return Compile(*o.PageHTML)
	case o.PageStyle == nil && o.Message == "":
		return nil, nil
	}
	style := option.CopyOf(o.PageStyle)
	style.Text = cmp.Or(o.Message, style.Text)
	return style.Compile()
}

// ParseLog returns what limits the refusals in the access log, in bursts of those of
// a second. It is nil if all are logged.
func ParseLog(text string) (*rate.Limiter, error) {
	switch text {
	case logAll:
		return nil, nil
	case option.Off:
		return rate.NewLimiter(0, 0), nil
	}
	lines, err := leakybucket.ParseRate(text)
	if err != nil || lines <= 0 {
		return nil, errors.New("invalid log " + strconv.Quote(text) + ": want all, off or a rate such as 10/s")
	}
	return rate.NewLimiter(rate.Limit(lines), max(1, int(lines))), nil
}
