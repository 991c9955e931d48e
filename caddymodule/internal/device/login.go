package device

import (
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// succeeded reports whether the Set-Cookie headers of a response set a cookie that
// matches the pattern. Of several for one name the last counts. Log-outs and some
// failed log-ins delete such cookies.
func succeeded(pattern string, lines []string, now time.Time) bool {
	for i, line := range lines {
		name := cookieName(line)
		if match, _ := path.Match(pattern, name); !match || strings.HasPrefix(name, cookiePrefix) {
			continue
		}
		overruled := slices.ContainsFunc(lines[i+1:], func(later string) bool { return cookieName(later) == name })
		if !overruled && keeps(line, now) {
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
			if blank(value) {
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
				if match, _ := path.Match(pattern, name); match {
					return true
				}
			}
		}
	}
	return false
}

var phpName = strings.NewReplacer(".", "_", " ", "_", "[", "_", "+", "_")

func cookieName(line string) string {
	pair, _, _ := strings.Cut(line, ";")
	name, _, _ := strings.Cut(pair, "=")
	return strings.TrimSpace(name)
}

// keeps reports whether a Set-Cookie header gives a cookie a value that browsers keep.
// An attribute that is not understood makes it a deletion.
func keeps(line string, now time.Time) bool {
	pair, attributes, _ := strings.Cut(line, ";")
	_, value, _ := strings.Cut(pair, "=")
	if blank(value) {
		return false
	}
	for attribute := range strings.SplitSeq(attributes, ";") {
		name, value, _ := strings.Cut(attribute, "=")
		value = strings.TrimSpace(value)
		switch strings.ToLower(strings.TrimSpace(name)) {
		case "max-age":
			if seconds, err := strconv.ParseUint(value, 10, 63); err != nil || seconds == 0 {
				return false
			}
		case "expires":
			if expires, ok := parseExpires(value); !ok || !expires.After(now) {
				return false
			}
		}
	}
	return true
}

// blank reports whether a value is white space, as WordPress deletes its cookies with,
// encoded or not.
func blank(value string) bool {
	if plain, err := url.QueryUnescape(value); err == nil {
		value = plain
	}
	return strings.Trim(value, " \t\"") == ""
}

// parseExpires reads the date of a cookie: one of HTTP's, or with hyphens and four
// digits, as PHP wrote them for long.
func parseExpires(text string) (time.Time, bool) {
	expires, err := http.ParseTime(text)
	if err != nil {
		expires, err = time.Parse("Mon, 02-Jan-2006 15:04:05 MST", text)
	}
	return expires, err == nil
}
