package option

import (
	"cmp"
	"strings"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/cookie"
)

// CheckLogInCookie refuses a pattern that matches no cookie that a log-in may set, or any.
func CheckLogInCookie(option, pattern string) error {
	meant := UnfinishedCookie(pattern)
	return cmp.Or(
		Refuse(option, meant != "", "invalid cookie %q in %s: no cookie ends so; did you mean %s?", pattern, option, meant),
		Refuse(option, !cookie.ValidPattern(pattern), "invalid cookie %q in %s: want the name, or a pattern such as wordpress_logged_in_*, of one that nothing but a log-in sets", pattern, option),
	)
}

// UnfinishedCookie returns the pattern that is meant by a name that lacks the star
// for the digest of the site, or "".
func UnfinishedCookie(name string) string {
	switch {
	case name == "wordpress_logged_in":
		return name + "_*"
	case strings.HasSuffix(name, "_") || strings.HasSuffix(name, "-"):
		return name + "*"
	}
	return ""
}
