package config

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/cookie"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
)

// Refund matches responses for which nine tenths of the charge are given back: those to a
// log-in that succeeded. It has one of the two fields, and if one of several matches, that is
// enough. All other responses stay charged, so a mistake here hurts those who log in, and
// guessers get ten times as many guesses at most. The status and the header fields are those
// that come from the handlers behind `throttle`; what handlers before it set or change does
// not count. Nothing is given back if an error route answers, the upstream fails, or the client
// leaves before it has the response.
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

func compileRefunds(refunds []Refund, r *limit.Rule) error {
	for i, refund := range refunds {
		if err := refund.check(); err != nil {
			return About("refund", i, err)
		}
		r.Refund = append(r.Refund, limit.Refund{Response: refund.Match, Cookie: refund.Cookie})
	}
	return nil
}

func (r *Refund) check() error {
	switch {
	case (r.Match == nil) == (r.Cookie == ""):
		return errors.New("incomplete refund: want a response matcher such as status 302, or cookie <glob>")
	case r.Match == nil:
		err := checkLogInCookie("refund", r.Cookie)
		if name := anonymous(r.Cookie); err == nil && name != "" {
			err = fmt.Errorf("cookie %q in refund matches %s, which visitors get who have not logged in: want one that only a log-in sets", r.Cookie, name)
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
	for _, status := range r.Match.StatusCode {
		if (status < 1 || status > 5) && (status < 200 || status > 599) {
			return fmt.Errorf("invalid status %d in refund: want a code such as 302 or a class such as 3xx", status)
		}
	}
	return nil
}

// checkLogInCookie refuses a pattern that matches no cookie that a log-in may set, or any.
func checkLogInCookie(option, pattern string) error {
	meant := unfinished(pattern)
	return cmp.Or(
		refuse(option, meant != "", "invalid cookie %q in %s: no cookie ends so; did you mean %s?", pattern, option, meant),
		refuse(option, !cookie.ValidPattern(pattern), "invalid cookie %q in %s: want the name, or a pattern such as wordpress_logged_in_*, of one that nothing but a log-in sets", pattern, option),
	)
}

// unfinished returns the pattern that is meant by a name that lacks the star
// for the digest of the site, or "".
func unfinished(name string) string {
	switch {
	case name == "wordpress_logged_in":
		return name + "_*"
	case strings.HasSuffix(name, "_") || strings.HasSuffix(name, "-"):
		return name + "*"
	}
	return ""
}
