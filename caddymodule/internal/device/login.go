package device

import (
	"net/url"
	"strings"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/cookie"
)

// succeeded reports whether the Set-Cookie headers of a response set a cookie that
// matches the pattern. Log-outs and some failed log-ins delete such cookies.
func succeeded(pattern string, lines []string, now time.Time) bool {
	for set := range cookie.SetBy(lines, now) {
		if set.Kept && cookie.Matches(pattern, set.Name) && !strings.HasPrefix(set.Name, cookie.OwnPrefix) {
			return true
		}
	}
	return false
}

// carries reports whether the Cookie headers of a request have a cookie that matches the
// pattern, under any name that PHP or Rack read as one: they unescape names, and PHP
// writes _ for characters that its variables cannot have.
func carries(pattern string, headers []string) bool {
	for _, header := range headers {
		for pair := range strings.FieldsFuncSeq(header, func(r rune) bool { return r == ';' || r == ',' }) {
			name, value, _ := strings.Cut(strings.TrimSpace(pair), "=")
			if cookie.Blank(value) {
				continue
			}
			names := []string{strings.TrimSpace(name)}
			if unescaped, err := url.QueryUnescape(names[0]); err == nil {
				names = append(names, unescaped)
			}
			for _, name := range names {
				array, _, _ := strings.Cut(name, "[")
				names = append(names, array, phpName.Replace(name))
			}
			for _, name := range names {
				if cookie.Matches(pattern, name) {
					return true
				}
			}
		}
	}
	return false
}

var phpName = strings.NewReplacer(".", "_", " ", "_", "[", "_", "+", "_")
