// Package cookie reads what clients and upstreams say in cookies, and whether cookies that
// are for HTTPS alone may be sent. Begin with [SentBy].
package cookie

import (
	"cmp"
	"iter"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// OwnPrefix begins the names of all our cookies. It makes browsers refuse them from other
// hosts and over plain HTTP.
const OwnPrefix = "__Host-throttle-"

// Own returns the Set-Cookie header of one of our cookies, which deletes it if it does not
// last.
func Own(name, value string, lasts time.Duration) string {
	c := http.Cookie{
		Name: name, Value: value, Path: "/",
		MaxAge: cmp.Or(int(lasts.Seconds()), -1), Secure: true, HttpOnly: true, SameSite: http.SameSiteLaxMode,
	}
	return c.String()
}

// A Set is a cookie that a response sets or deletes.
type Set struct {
	Name, Value string // as the header has them, without white space around

	// Kept reports whether browsers keep it. If not, the response deletes it.
	Kept bool
}

// SetBy iterates over the cookies that the Set-Cookie headers of a response set or
// delete. Of several for one name the last counts.
func SetBy(lines []string, now time.Time) iter.Seq[Set] {
	return func(yield func(Set) bool) {
		for i, line := range lines {
			name := nameOf(line)
			overruled := slices.ContainsFunc(lines[i+1:], func(later string) bool { return nameOf(later) == name })
			if !overruled && !yield(parse(line, now)) {
				return
			}
		}
	}
}

// Sets reports whether the Set-Cookie headers of a response set a cookie of the upstream's
// that matches a pattern. Log-outs and some failed logins delete such cookies.
func Sets(pattern string, lines []string, now time.Time) bool {
	for set := range SetBy(lines, now) {
		if set.Kept && Upstreams(pattern, set.Name) {
			return true
		}
	}
	return false
}

func nameOf(line string) string {
	pair, _, _ := strings.Cut(line, ";")
	name, _, _ := strings.Cut(pair, "=")
	return strings.TrimSpace(name)
}

// parse reads one Set-Cookie header. A lifetime that is not understood makes it a
// deletion. Values may be anything, such as JSON, for which net/http has no room.
func parse(line string, now time.Time) Set {
	pair, attributes, _ := strings.Cut(line, ";")
	name, value, _ := strings.Cut(pair, "=")
	c, err := http.ParseSetCookie("any=thing;" + attributes)
	kept := err == nil && c.MaxAge >= 0 && (c.Expires.IsZero() || c.Expires.After(now)) && !isBlank(value) &&
		!slices.ContainsFunc(c.Unparsed, func(attribute string) bool {
			name := strings.ToLower(nameOf(attribute)) // net/http leaves a blank before the =, and browsers do not
			return name == "max-age" || name == "expires"
		})
	return Set{Name: strings.TrimSpace(name), Value: strings.TrimSpace(value), Kept: kept}
}

// isBlank reports whether a value is white space, as WordPress deletes its cookies with,
// encoded or not.
func isBlank(value string) bool {
	plain, _ := url.QueryUnescape(value)
	return strings.Trim(cmp.Or(plain, value), " \t\"") == ""
}

// SentBy iterates over the names and values in the Cookie headers of a request, as the
// client sends them, without white space around.
func SentBy(headers []string) iter.Seq2[string, string] {
	return func(yield func(name, value string) bool) {
		for _, header := range headers {
			for pair := range strings.SplitSeq(header, ";") {
				name, value, _ := strings.Cut(pair, "=")
				if name = strings.TrimSpace(name); name != "" && !yield(name, strings.TrimSpace(value)) {
					return
				}
			}
		}
	}
}

// Upstreams reports whether a cookie matches a pattern for the upstream's, as [path.Match] takes
// it. Ours are none.
func Upstreams(pattern, name string) bool {
	match, _ := path.Match(pattern, name)
	return match && !strings.HasPrefix(name, OwnPrefix)
}

// ValidPattern reports whether a pattern for cookies can be told from any cookie.
func ValidPattern(pattern string) bool {
	match, err := path.Match(pattern, "")
	return err == nil && !match && strings.Trim(pattern, "*?") != "" && !strings.ContainsAny(pattern, "/,;= \t")
}

// Secure reports whether the client uses HTTPS, as Caddy's reverse proxy tells the
// upstream: a trusted proxy's X-Forwarded-Proto counts.
func Secure(r *http.Request) bool {
	if values := r.Header["X-Forwarded-Proto"]; len(values) > 0 && values[len(values)-1] != "" {
		if trusted, _ := caddyhttp.GetVar(r.Context(), caddyhttp.TrustedProxyVarKey).(bool); trusted {
			return values[len(values)-1] == "https"
		}
	}
	return r.TLS != nil
}
