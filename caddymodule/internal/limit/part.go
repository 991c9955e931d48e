package limit

import (
	"net"
	"net/http"
	"regexp"
	"strings"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/response"
	bucketkey "github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

// A Template is a text with placeholders, split into pieces.
type Template []piece

// A piece is a literal text, or the name of a placeholder.
type piece struct{ text, placeholder string }

var placeholder = regexp.MustCompile(`\{[^{}\s]+\}`)

// ParseTemplate splits a text with placeholders into pieces.
func ParseTemplate(text string) Template {
	t := Template{}
	end := 0
	for _, at := range placeholder.FindAllStringIndex(text, -1) {
		if at[0] > end {
			t = append(t, piece{text: text[end:at[0]]})
		}
		t = append(t, piece{placeholder: text[at[0]+1 : at[1]-1]})
		end = at[1]
	}
	if end < len(text) {
		t = append(t, piece{text: text[end:]})
	}
	return t
}

// Placeholders returns the names of the placeholders in the template.
func (t Template) Placeholders() (names []string) {
	for _, piece := range t {
		if piece.placeholder != "" {
			names = append(names, piece.placeholder)
		}
	}
	return names
}

// read returns the value of the piece's placeholder.
func (p piece) read(s *Subject) string {
	switch p.placeholder {
	case "http.request.method", "http.request.orig_method":
		return Method(s)
	case "http.request.host": // as Caddy has it, without a search for the name
		if host, _, err := net.SplitHostPort(s.Request.Host); err == nil {
			return host
		}
		return s.Request.Host
	}
	value, _ := s.Replacer().GetString(p.placeholder)
	return value
}

// appendParts appends each piece as a part of its own, so that the value of one
// placeholder cannot look like that of the next. It also returns the plain text,
// which is "" if a placeholder has no value.
func (t Template) appendParts(name []byte, s *Subject) (longer []byte, text string) {
	for i, piece := range t {
		if i > 0 {
			name = append(name, '/')
		}
		value := piece.text
		if piece.placeholder != "" {
			if value = piece.read(s); value == "" {
				return name, ""
			}
		}
		name = bucketkey.AppendPart(name, value)
		text += value
	}
	return name, text
}

// Header returns a source that reads a header. A header that is sent twice is missing,
// because the upstream may read the other value.
func Header(name string) func(*Subject) string {
	return func(s *Subject) string { return response.Single(s.Request.Header[name]) }
}

// Cookie returns a source that reads a cookie. One that is sent twice is missing.
func Cookie(name string) func(*Subject) string {
	return func(s *Subject) string {
		cookies := s.Request.CookiesNamed(name)
		if len(cookies) != 1 {
			return ""
		}
		return cookies[0].Value
	}
}

// Query returns a source that reads a query parameter. One that is sent twice is
// missing.
func Query(name string) func(*Subject) string {
	return func(s *Subject) string { return response.Single(s.Request.URL.Query()[name]) }
}

// Host reads the host of a request, in lower case and without port.
func Host(s *Subject) string {
	host := strings.Trim(s.Request.Host, "[]")
	if strings.Contains(host, ":") { // otherwise an error would only cost an allocation
		if name, _, err := net.SplitHostPort(s.Request.Host); err == nil {
			host = name
		}
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// Text returns a source that reads a fixed text.
func Text(text string) func(*Subject) string {
	return func(*Subject) string { return text }
}

// OtherRoute is the name of all paths that match no route.
const OtherRoute = "other"

// Route reads the name of the first route that matches the request as sent, or else as
// rewritten.
func (k *Key) Route(s *Subject) string {
	name := OtherRoute
	_, _ = s.either(func() (bool, error) {
		for i := range k.routes {
			if match, _ := k.routes[i].Path.MatchWithError(s.Judged); match {
				name = k.routes[i].Name
				return true, nil
			}
		}
		return false, nil
	})
	return name
}

// BasicUser returns what reads the user name of HTTP Basic, folded. There is none if the
// header is not written as RFC 7617 has it; see [unclearUser].
func BasicUser(folding foldFunc) func(*Subject) string {
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
