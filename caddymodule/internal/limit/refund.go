package limit

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/cookie"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/option"
)

// keptShare is the share of a refunded charge that is kept. So a line that also matches
// failures admits ten times as many of them, and not any number.
const keptShare = .1

// Refunds are the responses for which a zone gives most of a charge back, such as those to
// a login that succeeded. A response earns a refund if one of them matches.
type Refunds []Refund

// Refund matches responses for which nine tenths of the charge are given back: those to a
// login that succeeded. It has one of the two fields, and if one of several matches, that is
// enough. All other responses stay charged, so a mistake here hurts those who log in, and
// guessers get ten times as many guesses at most. The status and the header fields are those
// that come from the handlers behind `throttle`; what handlers before it set or change does not
// count. Nothing is given back if an error route answers, or the client leaves before that.
type Refund struct {
	// A response matcher as in the rest of Caddy: a status, header fields, or both. If
	// clients can make a failure answer the same, by a parameter or another address, they
	// get refunds, too.
	Match *caddyhttp.ResponseMatcher `json:"match,omitempty"`

	// The cookie that the response sets, with a value and not in the past: a name, or a
	// pattern such as `wordpress_logged_in_*`. It must be one that visitors do not get
	// before they have logged in.
	Cookie string `json:"cookie,omitempty"`
}

// check checks each refund.
func (r Refunds) check() error {
	for i := range r {
		if err := r[i].check(); err != nil {
			return option.About("refund", i, err)
		}
	}
	return nil
}

func (r *Refund) check() error {
	switch {
	case (r.Match == nil) == (r.Cookie == ""):
		return errors.New("incomplete refund: want a response matcher such as status 302, or cookie <glob>")
	case r.Match == nil:
		err := option.CheckLogInCookie("refund", r.Cookie)
		if name := cookie.Anonymous(r.Cookie); err == nil && name != "" {
			err = fmt.Errorf("cookie %q in refund matches %s, which visitors get who have not logged in: want one that only a login sets", r.Cookie, name)
		}
		return err
	case len(r.Match.StatusCode) == 0 && len(r.Match.Headers) == 0:
		return errors.New("refund names no response: want status <code|class>..., header <Field> <value> or cookie <glob>")
	}
	for field := range r.Match.Headers {
		if http.CanonicalHeaderKey(field) == "Set-Cookie" {
			return errors.New("refund header Set-Cookie also matches a cookie that is deleted: want refund cookie <glob>")
		}
	}
	return nil
}

// Match reports whether a response with this status and these headers earns a refund. A
// cookie counts only if the browser keeps it: log-outs and some failures delete it.
func (r Refunds) Match(status int, header http.Header, now time.Time) bool {
	return slices.ContainsFunc(r, func(one Refund) bool {
		if one.Match != nil {
			return one.Match.Match(status, header)
		}
		return cookie.Sets(one.Cookie, header["Set-Cookie"], now)
	})
}
