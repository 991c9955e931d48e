package cookie

import (
	"path"
	"regexp"
	"strings"
)

// anonymousCookies are cookies that visitors get who have not logged in. Behind those that end
// in a blank is a digest of the site.
var anonymousCookies = []string{
	"PHPSESSID", "laravel_session", "laravel-session", "XSRF-TOKEN", "_app_session", "_session_id", "wordpress_test_cookie",
	"woocommerce_items_in_cart", "woocommerce_cart_hash", "JSESSIONID", "ASP.NET_SessionId", ".AspNetCore.Session",
	"connect.sid", "koa.sess", "ci_session", "CAKEPHP", "csrftoken", "csrf_token", "_csrf", "xf_session", "Redmine",
	"wp_woocommerce_session_ ", "comment_author_ ", "ASPSESSIONID ",
}

// railsSession matches how Rails names the session, which all visitors get, and its beginning.
var railsSession = regexp.MustCompile(`^_.*(_session|\*)$`)

// Anonymous returns a cookie that anonymous visitors get and that matches a pattern, or
// "" if none is known.
func Anonymous(pattern string) string {
	pattern = strings.TrimPrefix(strings.TrimPrefix(pattern, "__Host-"), "__Secure-") // any cookie may have one
	for _, name := range anonymousCookies {
		name, digest := strings.CutSuffix(name, " ")
		if match, _ := path.Match(pattern, name); match || digest && strings.HasPrefix(pattern, name) {
			return name
		}
	}
	if railsSession.MatchString(pattern) {
		return pattern
	}
	return ""
}
