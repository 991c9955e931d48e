package rule

import (
	"net/http"
	"strings"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/fold"
)

// BasicUser returns what reads the user name of HTTP Basic, folded. There is none if the
// header is not written as RFC 7617 has it; see [unclearUser].
func BasicUser(folding fold.Func) func(*Subject) string {
	return func(s *Subject) string {
		if len(s.Request.Header["Authorization"]) != 1 {
			return ""
		}
		user, _, _ := s.Request.BasicAuth()
		return folding(user)
	}
}

// unclearUser reports whether the upstream may read a user name of HTTP Basic that we do
// not: PHP and Ruby skip what is no base64, each in its own way.
func unclearUser(r *http.Request) bool {
	headers := r.Header["Authorization"]
	for _, header := range headers {
		if scheme := "basic"; len(header) >= len(scheme) && strings.EqualFold(header[:len(scheme)], scheme) {
			_, _, clear := r.BasicAuth()
			return !clear || len(headers) > 1
		}
	}
	return false
}
