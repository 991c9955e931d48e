package decision

import (
	"encoding/base64"
	"strings"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/fold"
)

// BasicUser returns what reads the user name of HTTP Basic, folded, as the upstream
// reads it. PHP and Ruby skip what is no base64 in the middle of it; where they read
// different names, or the header is given twice, there is none.
func BasicUser(folding fold.Func) func(*Subject) string {
	return func(s *Subject) string {
		return folding(basicUser(single(s.Request.Header["Authorization"])))
	}
}

const basicScheme = "basic"

// basicUser returns the user name in a header, or "". Ruby takes any blank after the
// scheme, PHP only a space. A header that only Ruby understands counts.
func basicUser(header string) string {
	if len(header) <= len(basicScheme) || !strings.EqualFold(header[:len(basicScheme)], basicScheme) {
		return ""
	}
	credentials := header[len(basicScheme):]
	if strings.IndexByte(" \t\v\f", credentials[0]) < 0 {
		return ""
	}
	php, ruby := userIn(decodeLikePHP(credentials)), userIn(decodeLikeRuby(credentials))
	if credentials[0] != ' ' || strings.IndexByte(php, 0) >= 0 {
		php = "" // to PHP a text ends with a NUL, and this one has no colon
	}
	switch {
	case ruby == "", php == ruby:
		return php
	case php == "":
		return ruby
	}
	return ""
}

// userIn returns what stands before the colon, or "" if there is none.
func userIn(credentials string) string {
	user, _, found := strings.Cut(credentials, ":")
	if !found {
		return ""
	}
	return user
}

// decodeLikePHP skips every byte that is none of base64, padding too.
func decodeLikePHP(text string) string { return decode(strings.Map(onlyBase64, text)) }

// decodeLikeRuby stops at padding that stands where padding may.
func decodeLikeRuby(text string) string {
	n := 0
	for i := range len(text) {
		switch {
		case text[i] == '=' && n%4 >= 2:
			return decode(strings.Map(onlyBase64, text[:i]))
		case onlyBase64(rune(text[i])) >= 0:
			n++
		}
	}
	return decode(strings.Map(onlyBase64, text))
}

func onlyBase64(r rune) rune {
	switch {
	case 'A' <= r && r <= 'Z', 'a' <= r && r <= 'z', '0' <= r && r <= '9', r == '+', r == '/':
		return r
	}
	return -1
}

// decode reads base64 without padding. The last letter may stand alone and is dropped.
func decode(text string) string {
	if len(text)%4 == 1 {
		text = text[:len(text)-1]
	}
	decoded, _ := base64.RawStdEncoding.DecodeString(text) // whose alphabet it has
	return string(decoded)
}
